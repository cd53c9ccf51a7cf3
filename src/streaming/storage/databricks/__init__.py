"""Databricks: volumes of Unity Catalog, and the older DBFS."""

"""Databricks: files of Unity Catalog, and the older DBFS."""

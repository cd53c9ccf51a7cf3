"""What tests need: real servers, fakes and suites that anyone's own parts can run."""

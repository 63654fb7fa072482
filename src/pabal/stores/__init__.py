"""Where messages live: one module per store, each passing `pabal.testing.StoreSuite`."""

"""What a run tells about itself: metrics files, the live display, the ledger's report and plots."""

"""Training that nobody prepared: its ranks as /proc shows them, asked as far as this user may."""

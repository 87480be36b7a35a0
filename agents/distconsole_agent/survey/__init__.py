"""Training that distconsole did not start: its ranks in /proc, asked as far as this user may."""

"""Workers of one group that are killed, join and leave, and the check of what they have done."""

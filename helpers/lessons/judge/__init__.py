"""How an attempt is judged: what it is fed, what is compared, what else must hold, what is said."""

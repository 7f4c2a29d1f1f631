"""Which line is to blame."""

EXITS = None


def find(cases, budget, few=False):
    return {}


def exits(subject):
    return None


def uncut_if(right):
    return None


def after_which(subject, name, passes, budget):
    return None

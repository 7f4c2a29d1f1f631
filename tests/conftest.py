"""Says at the end of a run how many stored outputs of the notebooks were compared."""

COMPARED = "stored outputs compared"


def pytest_collection_modifyitems(items):
    for item in items:
        if type(item).__name__ == "IPyNbCell" and item.options["check"]:
            item.user_properties.append((COMPARED, len(item.cell.outputs)))


def pytest_terminal_summary(terminalreporter):
    reports = terminalreporter.getreports("passed")
    counts = [
        (report.nodeid.split("::")[0], value)
        for report in reports
        for name, value in report.user_properties
        if name == COMPARED and report.when == "call"
    ]
    if counts:
        notebooks = len({path for path, _ in counts})
        total = sum(value for _, value in counts)
        terminalreporter.write_line(f"{COMPARED}: {total}, in {notebooks} notebooks")

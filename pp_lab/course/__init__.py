"""The course room: the exercises and their checks, the release of a lab, the doctor."""

"""The verbs, with their schedules and sensors."""

"""Pages that people look at: films, a run's report, a sweep's."""

"""Reports: figures and tables from results. Nothing here trains; matplotlib is imported only when a figure is drawn."""

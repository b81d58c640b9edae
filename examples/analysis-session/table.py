years = days.groupby(days["date"].dt.year)[["precipitation", "temp_max"]].agg({"precipitation": "sum", "temp_max": "mean"})
years.round(1)

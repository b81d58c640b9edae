import pandas as pd

days = pd.read_csv("seattle-weather.csv", parse_dates=["date"])
days.head(3)

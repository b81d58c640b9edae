import matplotlib.pyplot as plt

years["precipitation"].plot.bar(title="Rain in Seattle")
plt.ylabel("mm a year")
plt.savefig("rain.png")

package power

// SimulatedFile is a file in a simulated powercap tree. Its one line is the name of the simulated
// meters.
const SimulatedFile = "mete-simulated"

// DemoLabel is the name of the meters of a demonstration.
const DemoLabel = "simulated meter (demo)"

package power

// SimulatedFile is beside the zones of a powercap tree that nobody measured: it
// holds, in a line, what such meters are called.
const SimulatedFile = "mete-simulated"

// DemoLabel is what the meters of a demonstration are called.
const DemoLabel = "simulated meter (demo)"

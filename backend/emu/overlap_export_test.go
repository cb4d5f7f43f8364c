package emu

// Overlaps is the switch of collectives beside other nodes, for tests over MPI.
var Overlaps = &overlaps

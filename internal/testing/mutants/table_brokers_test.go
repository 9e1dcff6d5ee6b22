package mutants

// brokerMutants are those of packages kafka and nats.
var brokerMutants = []Mutant{}

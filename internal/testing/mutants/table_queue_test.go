package mutants

// queueMutants are those of the durable queue.
var queueMutants = []Mutant{}

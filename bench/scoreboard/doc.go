// Scoreboard runs the scenarios by which job queues on PostgreSQL are compared, for the outbox, for the queue, and for
// River beside them: transactions that stay open, readers, a burst, workers and servers that are killed.
//
//	go run ./scoreboard                     all, in half an hour
//	go run ./scoreboard -only 'crash/river' scenarios and systems whose "scenario/system" matches a regular expression
//	go run ./scoreboard -stress 10m         a stress that lasts: what vacuum cannot clean needs time to hurt
//
// The scenarios are those of github.com/hardbyte/postgresql-job-queue-benchmarking, in our own code and shorter. Each
// pair of a scenario and a system has a server of its own, two worker processes, and sixteen producers that commit one
// message at a time at a steady rate; what could not be produced in time is produced as soon as it can be. It begins
// with a baseline, then comes the stress, then the time to recover, and at last up to two minutes for what is missing.
//
// # What is counted
//
// A worker writes the number of each message that it handles to its standard output, which outlives the worker. A
// message counts from its commit to the first time that it is handled. What is committed and never handled is lost;
// what a producer was told nothing of may come or not. Handlers take 5 ms and do nothing else, so messages per second
// are those of the producers as long as a system keeps up, and a worker that is killed had some in its hands.
//
// # Fairness
//
// All have two workers. The forwarder has its defaults. River and the queue handle 100 at once. River fetches when it
// is notified, without a pause, and each 100 ms besides; its jobs may take 5 s, and are rescued after as long, the
// least that it allows for. What decides is not to be set: its leader looks for them each 30 s, and a leader that died
// is replaced after 15 s. The lease of the queue is 10 s, as that of the forwarder is.
package main

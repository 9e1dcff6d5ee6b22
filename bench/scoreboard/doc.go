// Scoreboard runs scenarios for comparing job queues on PostgreSQL with the outbox, the queue and River: transactions
// that stay open, readers, a burst, workers and servers that are killed.
//
//	go run ./scoreboard                     all, in half an hour
//	go run ./scoreboard -only 'crash/river' scenarios and systems whose "scenario/system" matches a regular expression
//	go run ./scoreboard -stress 10m         a long stress, because rows that vacuum cannot clean take time to hurt
//
// The scenarios come from github.com/hardbyte/postgresql-job-queue-benchmarking, in our own code and shorter. Each pair
// of a scenario and a system has its own server, two worker processes, and sixteen producers that commit one message at
// a time at a steady rate; messages that are late are produced as soon as possible. A run has a baseline, the stress,
// time to recover, and finally up to two minutes for missing messages.
//
// # Counting
//
// A worker writes the number of each message that it handles to its standard output, which outlives the worker. A
// message counts from its commit to the first time that it is handled. A committed message that is never handled is
// lost; one whose commit had no reply may arrive or not. Handlers just wait 5 ms. So as long as a system keeps up, it
// handles messages at the rate of the producers, and a killed worker was handling some.
//
// # Fairness
//
// All have two workers. The forwarder has its defaults. River and the queue handle 100 at once. River fetches when it
// is notified, without a pause, and also every 100 ms; its jobs may take 5 s, and are rescued after the same time, its
// minimum. The deciding times cannot be set: its leader searches for them every 30 s, and a dead leader is replaced
// after 15 s. The lease of the queue is 10 s, like the forwarder's.
package main

// Package services starts servers for examples, integration tests and benchmarks: Postgres, Kafka, NATS, RabbitMQ and
// Redis.
//
// [StartPostgres], [StartKafka] and [StartNATS] start a real server: Postgres from the machine's binaries or downloaded
// ones, Kafka on the machine's Java with jars from Maven, NATS inside this process. Without a usable Java or Maven
// [StartKafka] starts an in-memory fake, logs one line about it, and [Kafka.Fake] returns true. With CI=true in the
// environment that is an error instead.
//
// [StartKafkaCluster] and [StartNATSCluster] always start three servers, each in its own process. [StartNATSProcess]
// starts one NATS server that can be killed.
//
// [StartRabbitMQ] and [StartRedis] run the machine's program, and return [ErrNotInstalled] if it is missing.
//
// A server is returned after it has replied to a real request. It listens on 127.0.0.1 and a free port, and keeps its
// data in a temporary folder under os.TempDir.
//
// # Life of a server
//
// Stop ends a server gracefully and Kill ends it like a crash; both keep its data. Restart starts it again on the same
// port with the same data. Close ends it for good and removes its folder. The fake Kafka cannot be stopped: Stop, Kill
// and Restart return an error that wraps [errors.ErrUnsupported].
//
// A [Node] of a cluster can also be frozen, and isolated from the other nodes.
//
// The context given to a Start function limits the start, not the life of the server. [StopAll] closes all servers that
// are still running, and [StopOnSignal] does so on an interrupt as well, so a TestMain looks like this:
//
//	stop := services.StopOnSignal()
//	code := m.Run()
//	stop()
//	os.Exit(code)
//
// If this process is killed, Linux ends the server processes with it; on other systems they stay. The next run that
// starts a server removes folders left by such a run.
//
// # Environment
//
//   - OUTBOX_POSTGRES_BIN: folder with initdb and postgres, instead of looking for one.
//   - OUTBOX_POSTGRES_VERSION: full version such as 17.5.0, downloaded instead of using the machine's.
//   - CI: true forbids the fake Kafka.
//   - JAVA_HOME: tried before the java in PATH.
//   - TMPDIR: folder for data; on a memory file system syncing is free and benchmarks look better.
package services

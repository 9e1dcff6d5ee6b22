package main

// published is the way of a message from Publish to settled: what runs where, and what is written.
func published() string {
	d := &drawing{width: 880, height: 420}
	d.text("bold", 12, 24, "your goroutine")
	d.box("tx", 10, 36, 250, 150, "")
	d.text("small", 22, 55, "InTx, or the middlewares")
	d.box("box", 22, 66, 104, 54, "your writes")
	d.box("ours", 140, 66, 108, 54, "Publish", "kept for COMMIT")
	d.box("ours", 22, 130, 226, 46, "COMMIT", "with the rows and the inbox's note")
	d.arrow(74, 120, 74, 128)
	d.arrow(194, 120, 194, 128)

	d.text("bold", 300, 24, "PostgreSQL")
	d.box("box", 300, 36, 150, 340, "table outbox")
	d.box("box", 312, 112, 126, 64, "pending", "id, lane, key", "attempts 0")
	d.box("box", 312, 206, 126, 46, "failing", "attempts, due_at")
	d.box("box", 312, 262, 126, 46, "published", "kept for Retention")
	d.box("gone", 312, 318, 126, 46, "dead", "last_error")
	d.arrow(248, 153, 310, 148)
	d.text("mid small", 135, 206, "then a wake; others poll")

	d.text("bold", 500, 24, "forwarder: the owner of the row's lane")
	d.box("ours", 500, 36, 170, 70, "reader", "one statement, one", "snapshot: commit order")
	d.arrow(438, 130, 470, 130, 470, 71, 498, 71)
	d.box("ours", 500, 140, 170, 86, "board", "key free? topic not", "paused? place free?", "else parked, by its id")
	d.arrow(585, 106, 585, 138)
	d.box("ours", 712, 140, 158, 86, "worker", "Publish, no transaction", "open, bounded by", "PublishTimeout")
	d.arrow(670, 183, 710, 183)
	d.box("box", 712, 36, 158, 70, "broker", "acknowledges, or not")
	d.arrow(791, 138, 791, 108)
	d.box("ours", 712, 262, 158, 102, "verdict",
		"ok: published", "retry: attempt + 1", "permanent: dead", "unavailable: nothing")
	d.arrow(791, 226, 791, 260)
	d.box("ours", 500, 262, 170, 102, "settler",
		"results in batches:", "success is final,", "failure only under the", "lane's current epoch")
	d.arrow(710, 313, 672, 313)
	d.arrow(498, 290, 440, 285)
	d.arrow(498, 280, 470, 280, 470, 229, 440, 229)
	d.arrow(498, 340, 440, 340)
	d.text("mid small", 660, 386, "an unavailable topic pauses; a trial message opens it again")
	d.text("mid small", 660, 404, "a failing message blocks its key until it is published or dead")
	return d.svg("From Publish to settled: the row commits with the handler's writes, the owner of its lane " +
		"reads it in the order of " +
		"commits, a worker publishes it, and the settler writes back what became of it")
}

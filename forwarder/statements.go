package forwarder

import "github.com/millrace-go/watermill-outbox/internal/sqltext"

// statements are the statements of the engine with the table names filled in.
type statements struct {
	fetch, fetchRange, fetchMore, fetchRangeMore, fetchPayloads                      string
	fetchApart, fetchMoreApart                                                       string
	beginLife, writers, loadHeads, sweep, pending, clean                             string
	settlePublished, settleSpan, settleUnlocked, settleFailed, mayWrite              string
	lock, lockHolder, announce, ahead, join, createLanes, heartbeat, members, expire string
	lanes, take, retake, release                                                     string
	leave, forget, pause, operatorPauses, untaken, tell                              string
}

func newStatements(cfg Config) statements {
	t := cfg.tables
	s := statements{
		fetch: t.Render(sqltext.Fetch), fetchRange: t.Render(sqltext.FetchRange), fetchMore: t.Render(sqltext.FetchMore),
		fetchApart: t.Render(sqltext.FetchApart), fetchMoreApart: t.Render(sqltext.FetchMoreApart),
		fetchRangeMore: t.Render(sqltext.FetchRangeMore), beginLife: t.Render(sqltext.BeginLife),
		fetchPayloads: t.Render(sqltext.FetchPayloads), writers: t.Render(sqltext.Writers),
		loadHeads: t.Render(sqltext.LoadHeads), sweep: t.Render(sqltext.Sweep),
		pending:         t.Render(sqltext.Pending),
		settlePublished: t.Render(sqltext.SettlePublished), settleSpan: t.Render(sqltext.SettleSpan),
		settleUnlocked: t.Render(sqltext.SettleUnlocked),
		settleFailed:   t.Render(sqltext.SettleFailed), mayWrite: t.Render(sqltext.MayWrite),
		clean: t.Render(sqltext.CleanPublished),
		lock:  t.Render(sqltext.LockToJoin), lockHolder: t.Render(sqltext.JoinLockHolder),
		announce: t.Render(sqltext.AnnounceForwarder), ahead: t.Render(sqltext.ForwardersAhead),
		join: t.Render(sqltext.JoinForwarders), createLanes: t.Render(sqltext.CreateLanes),
		heartbeat: t.Render(sqltext.Heartbeat), tell: t.Render(sqltext.TellForwarder), members: t.Render(sqltext.Members),
		expire: t.Render(sqltext.ExpireForwarder), lanes: t.Render(sqltext.Lanes),
		take: t.Render(sqltext.TakeLanes), retake: t.Render(sqltext.RetakeLanes), release: t.Render(sqltext.ReleaseLanes),
		leave: t.Render(sqltext.LeaveForwarders), forget: t.Render(sqltext.ForgetForwarders),
		pause: t.Render(sqltext.PauseTopics), operatorPauses: t.Render(sqltext.OperatorPauses),
		untaken: t.Render(sqltext.Untaken),
	}
	if cfg.DeadLetterTopic != "" {
		s.settleFailed = t.Render(sqltext.SettleFailedLetters)
	}
	if cfg.Retention == -1 {
		s.settlePublished, s.settleSpan = t.Render(sqltext.SettlePublishedDelete), t.Render(sqltext.SettleSpanDelete)
		s.settleUnlocked = t.Render(sqltext.SettleUnlockedDelete)
	}
	return s
}

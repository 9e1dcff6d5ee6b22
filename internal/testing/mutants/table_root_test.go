package mutants

// rootMutants are mutants of transactions, publishing in them, and Run.
var rootMutants = []Mutant{
	{
		Name: "R1", File: "internal/core/tx.go", In: "integration_test", Test: "TestTxAlone",
		Breaks: "a transaction whose function failed is committed",
		Old:    "return rollback(ctx, own, err)",
		New: `if own.Commit(ctx, nil, nil) == nil {
			return err
		}
		return rollback(ctx, own, err)`,
	},
	{
		Name: "R2", File: "internal/core/tx.go", In: "integration_test", Test: "TestTxRollbackOnlyAcksAndDropsMessages",
		Breaks: "SetRollbackOnly commits",
		Old:    "case s.rollbackOnly:",
		New:    "case s.rollbackOnly && s.parent != nil:",
	},
	{
		Name: "R3", File: "internal/core/savepoint.go", In: "integration_test", Test: "TestNestedInTxIsASavepoint",
		Breaks: "a failed nested InTx is not undone",
		Old:    "err = errors.Join(err, s.undo(ctx, name))",
		New:    "s.tx.innermost = s.parent",
	},
	{
		Name: "R4", File: "internal/core/savepoint.go", In: "integration_test", Test: "TestHooksRunAfterCommitAlone",
		Breaks: "AfterCommit of a nested InTx is forgotten",
		Old:    "	s.parent.afterCommit = append(s.parent.afterCommit, s.afterCommit...)\n",
		New:    "",
	},
	{
		Name: "R5", File: "internal/core/savepoint.go", In: "integration_test",
		Test:   "TestWhatIsCapturedIsUndoneWithASavepoint",
		Breaks: "messages captured in a nested InTx are lost",
		Old:    "	s.parent.waiting = append(s.parent.waiting, s.waiting...)\n",
		New:    "",
	},
	{
		Name: "R6", File: "internal/core/tx.go", In: "integration_test", Test: "TestHooksRunAfterCommitAlone",
		Breaks: "AfterCommit is called after a rollback",
		Old: `	if err := s.observed(ctx, opts, fn); err != nil {
`,
		New: `	if err := s.observed(ctx, opts, fn); err != nil {
		for _, hook := range s.afterCommit {
			hook(OutsideTx(ctx))
		}
`,
	},
	{
		Name: "R7", File: "internal/core/savepoint.go", In: "integration_test",
		Strike: "the connection is gone, so COMMIT fails too; of a handler that ended the transaction the mark tells",
		Breaks: "a transaction with a savepoint that could not be undone is committed",
		Old:    "			return s.tx.broken\n",
		New:    "			s.tx.broken, s.tx.innermost = nil, s.parent\n			return nil\n",
	},
	{
		Name: "R8", File: "internal/core/tx.go", In: "integration_test", Test: "TestContextYieldsTheNativeTransaction",
		Breaks: "an ended transaction can be used through its context",
		Old:    "if around.ended {",
		New:    "if false {",
	},
	{
		Name: "R9", File: "internal/core/savepoint.go", In: "integration_test", Test: "TestNestedInTxRunOneAtATime",
		Breaks: "two nested InTx of a transaction overlap",
		Old:    "if s.tx.innermost != outer {",
		New:    "if false {",
	},
	{
		Name: "R10", File: "internal/core/write.go", In: "integration_test", Test: "TestPublishRefusesMixedTransactions",
		Breaks: "a message is written in the transaction of another database",
		Old: `	err := s.use(func() error {
		if !s.tx.db.shares(w.db) {`,
		New: `	err := s.use(func() error {
		if false {`,
	},
	{
		Name: "R11", File: "internal/core/tx.go", In: "integration_test", Test: "TestADuplicateKeepsWhatOthersWrote",
		Breaks: "the transaction of a duplicate is rolled back although others wrote in it",
		Old:    "if s.tx.idle && s.tx.uses == 1 {",
		New:    "if s.tx.idle {",
	},
	{
		Name: "R12", File: "internal/sqltext/write.go", In: "integration_test", Test: "TestEndingTheTransactionIsFound",
		Breaks: "a message is written although the handler ended the transaction by SQL",
		Old:    "InsertMarked = insertMessages + isUTF8 + ` AND ` + isMarked + allStored",
		New:    "InsertMarked = InsertMessages",
	},
	{
		Name: "R13", File: "internal/sqltext/write.go", In: "integration_test", Test: "TestDelays",
		Breaks: "a past due time puts a message behind later ones of its key",
		Old:    "CASE WHEN nullif(m.due, '')::timestamptz > clock_timestamp() THEN m.due::timestamptz END",
		New:    "nullif(m.due, '')::timestamptz",
	},
	{
		Name: "R14", File: "internal/core/write.go", In: "integration_test", Test: "TestWhatIsCapturedIsUndoneWithASavepoint",
		Breaks: "messages captured later are written first",
		Old:    "s.waiting = append(s.waiting, w)",
		New:    "s.waiting = append([]write{w}, s.waiting...)",
	},
	{
		Name: "R15", File: "internal/core/identity.go", In: ".", Test: "ExampleSetKey",
		Breaks: "half an aggregate gives neither a key nor an error",
		Old:    `case kind == "" && id == "":`,
		New:    `case kind == "" || id == "":`,
	},
	{
		Name: "R16", File: "internal/core/publisher.go", In: "integration_test", Test: "TestPublishRefusesMixedTransactions",
		Breaks: "messages of two transactions are written in the first one",
		Old:    "if !sameTx(scopeFrom(ctx), s) {",
		New:    "if false {",
	},
	{
		Name: "R17", File: "internal/core/context.go", In: "integration_test", Test: "TestRouterCloseLetsHandlersCommit",
		Breaks: "a Router that closes ends the transactions of its handlers",
		Old:    "	ctx = context.WithoutCancel(ctx)\n",
		New:    "",
	},
	{
		Name: "R18", File: "internal/core/tx.go", In: "integration_test", Test: "TestCommitsWakeForwardersOfTheirTable",
		Breaks: "a commit wakes no forwarder",
		Old:    "		db.wake(what.tables, what.notified)\n",
		New:    "		_, _ = db, what\n",
	},
	{
		Name: "R19", File: "run.go", In: ".", Test: "TestRunWaitsForEachBeforeTheNext",
		Breaks: "all runners are ended concurrently",
		Old: `	for i, one := range all {
		one.end()
`,
		New: `	for i, one := range all {
		for _, each := range all {
			each.end()
		}
`,
	},
	{
		Name: "R20", File: "run.go", In: ".", Test: "TestRunEndsAllWhenOneReturns",
		Breaks: "Run does not return the error of a runner",
		Old:    "if one.early || !onlyCanceled(one.err) {",
		New:    "if false {",
	},
	{
		Name: "R23", File: "run.go", In: ".", Test: "TestRunHidesOnlyTheEnd",
		Breaks: "a runner that failed by itself looks as if Run had ended it",
		Old:    "if one.early || ", New: "if ",
	},
	{
		Name: "R24", File: "run.go", In: ".", Test: "TestRunHidesOnlyTheEnd",
		Breaks: "an error that is joined with the end of the context is lost",
		Old:    "return !slices.ContainsFunc", New: "return errors.Is(err, context.Canceled) || !slices.ContainsFunc",
	},
	{
		Name: "R21", File: "run.go", In: ".", Test: "TestRunEndsAllWhenOneReturns",
		Breaks: "a runner that returns does not end the others",
		Old:    "		case <-returned:\n",
		New:    "",
	},
	{
		Name: "R22", File: "internal/core/tx.go", In: "integration_test", Test: "TestNestedInTxRunOneAtATime",
		Breaks: "a transaction is committed while a nested InTx still works in it",
		Old:    "case s.tx.innermost != s:",
		New:    "case false:",
	},
}

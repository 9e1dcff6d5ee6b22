package schema

import (
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// What follows is for packages of this module that do not yet name internal/drive, internal/sqltext and internal/text.

type (
	Names   = sqltext.Tables
	Querier = drive.Querier
	Rows    = drive.Rows
)

var (
	ErrBadName = sqltext.ErrBadName
	Collect    = drive.Collect
	SQLState   = text.SQLState
	Explain    = text.Explain
	Storable   = text.Storable
)

const (
	AnnounceForwarder     = sqltext.AnnounceForwarder
	BeginLife             = sqltext.BeginLife
	BuryInbox             = sqltext.BuryInbox
	CheckAlive            = sqltext.CheckAlive
	CheckColumns          = sqltext.CheckColumns
	CheckElsewhere        = sqltext.CheckElsewhere
	CheckIndexes          = sqltext.CheckIndexes
	CheckPrivileges       = sqltext.CheckPrivileges
	CheckRelations        = sqltext.CheckRelations
	CheckRole             = sqltext.CheckRole
	CheckSequence         = sqltext.CheckSequence
	CheckServer           = sqltext.CheckServer
	ClaimInbox            = sqltext.ClaimInbox
	CleanInbox            = sqltext.CleanInbox
	CleanInboxFailed      = sqltext.CleanInboxFailed
	CleanPublished        = sqltext.CleanPublished
	CreateLanes           = sqltext.CreateLanes
	FailInbox             = sqltext.FailInbox
	Fetch                 = sqltext.Fetch
	FetchRange            = sqltext.FetchRange
	FetchMore             = sqltext.FetchMore
	ForgetForwarders      = sqltext.ForgetForwarders
	ForwardersAhead       = sqltext.ForwardersAhead
	FromDue               = sqltext.FromDue
	FromHeader            = sqltext.FromHeader
	FromID                = sqltext.FromID
	FromIDDead            = sqltext.FromIDDead
	FromReady             = sqltext.FromReady
	Heartbeat             = sqltext.Heartbeat
	InboxHash             = sqltext.InboxHash
	InsertMessages        = sqltext.InsertMessages
	JoinForwarders        = sqltext.JoinForwarders
	Lanes                 = sqltext.Lanes
	LeaveForwarders       = sqltext.LeaveForwarders
	LoadHeads             = sqltext.LoadHeads
	LockForwarders        = sqltext.LockForwarders
	Members               = sqltext.Members
	PauseTopics           = sqltext.PauseTopics
	ReleaseLanes          = sqltext.ReleaseLanes
	RetakeLanes           = sqltext.RetakeLanes
	ReviveInbox           = sqltext.ReviveInbox
	SettleFailed          = sqltext.SettleFailed
	SettlePublished       = sqltext.SettlePublished
	SettlePublishedDelete = sqltext.SettlePublishedDelete
	SettleUnlocked        = sqltext.SettleUnlocked
	SettleUnlockedDelete  = sqltext.SettleUnlockedDelete
	Sweep                 = sqltext.Sweep
	TakeLanes             = sqltext.TakeLanes
	Writers               = sqltext.Writers
)

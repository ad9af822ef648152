// Package brokertest is the suite that any Kafka must pass: the embedded one
// on every test run, Apache's with the build tag real.
//
// A case is a function and a line in cases. It gets an install of its own, so
// that cases share a server and leave each other alone.
package brokertest

import (
	"testing"
	"time"
)

// Server is a running Kafka.
type Server struct {
	Addr string
	// Restart stops it in order and starts it at the same address.
	Restart func(testing.TB)
	// Kill kills it and starts it at the same address; nil if it cannot be
	// killed.
	Kill func(testing.TB)
	// Session is the shortest session of a group's member that it allows.
	Session time.Duration
}

type testCase struct {
	name string
	run  func(*world)
}

func cases() []testCase {
	return []testCase{
		{"publish/order, offsets and codecs", publishOrder},
		{"publish/many at once", publishConcurrently},
		{"publish/large events", publishLarge},
		{"publish/too large alone fails", publishTooLarge},
		{"publish/no such stream", publishNoStream},
		{"publish/tiny buffer", publishTinyBuffer},
		{"publish/to a partition of choice", publishTo},
		{"publish/flush", publishFlush},
		{"publish/close waits", publishClose},
		{"publish/close in a hurry", publishCloseHurried},

		{"consume/from earliest, latest, offset and time", consumeStarts},
		{"consume/an unread beginning is kept", consumeLatestKept},
		{"consume/out of order", consumeOutOfOrder},
		{"consume/an open event comes again", consumeOpenEvent},
		{"consume/pause and resume", consumePause},
		{"consume/a paused partition holds up nobody", consumePausedSmall},
		{"consume/bounded bytes", consumeBounded},
		{"consume/members come and go", groupChurn},
		{"consume/what is retained flows on", groupStall},
		{"consume/partitions grow", groupGrowth},

		{"committed/aborted events are never seen", committedAborted},
		{"committed/an open transaction holds readers back", committedOpen},
		{"committed/markers leave no lag", committedLag},

		{"read/anywhere", readAnywhere},
		{"read/an open transaction", readOpen},

		{"letters/a record that is no event", letterUndecodable},
		{"letters/a record too large for a letter", letterTooLarge},
		{"letters/offsets below the start", letterGap},
		{"letters/an offset beyond the end", letterBeyond},

		{"transact/exactly once, aborts included", transactCopy},
		{"transact/members come and go", transactChurn},
		{"transact/an aborted one leaves no trace", transactAbort},
		{"transact/a zombie is fenced", transactZombie},
		{"transact/a caller without time", transactTimeUp},
		{"transact/places are marked", transactMarks},
		{"transact/a mark alone", transactMarkAlone},
		{"transact/a mark of one put out", transactMarkZombie},
		{"transact/beside ends one by one", transactMixed},

		{"notes/of a transaction", notesInTransactions},
		{"notes/by and by", notesByAndBy},
		{"notes/of one put out", notesZombie},

		{"exclusive/one holder", exclusiveOne},
		{"exclusive/no taking back", exclusiveStays},

		{"tenure/in order", tenures},
	}
}

// disturbed are cases that restart the server, so they run alone.
func disturbed() []testCase {
	return []testCase{
		{"restart/published once and in order", restartPublish},
		{"restart/consumed, none lost", restartConsume},
		{"restart/transactions", restartTransact},
		{"restart/an exclusive name", restartExclusive},
	}
}

// Run runs the suite.
func Run(t *testing.T, s Server) {
	t.Run("shared", func(t *testing.T) {
		for _, c := range cases() {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.run(newWorld(t, s))
			})
		}
	})
	if s.Restart == nil {
		return
	}
	for _, c := range disturbed() {
		t.Run(c.name, func(t *testing.T) { c.run(newWorld(t, s)) })
	}
}

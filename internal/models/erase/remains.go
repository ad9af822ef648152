package erase

import (
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
)

// remains says where something of a key can still be found once it has been
// forgotten: on streams until their retention ends, for a log cannot be written
// anew; in the store until it is collected.
func remains(c *config.Config, n *tidemill.KeyForgotten, grace time.Duration, now time.Time) (all []tidemill.Remains) {
	for _, s := range c.Streams {
		all = append(all, onStream(s.Name, s.Retention, now))
	}
	for _, s := range c.Parked() {
		all = append(all, onStream(s.Name, s.Retention, now))
	}
	for _, s := range c.HeldFor() {
		held := onStream(s.Name, s.Retention, now)
		held.What = "its events of the stream " + s.From + " that had to wait until the scorer " + s.Scorer + " had a model in memory"
		all = append(all, held)
	}
	all = append(all, tidemill.Remains{Place: "the store", What: "the bytes of its data, versions, checkpoints and older runs' logs, which nothing names any more",
		Ends: "by the first collection (tidemill data gc) later than " + now.Add(grace).UTC().Format(time.RFC3339)})
	if len(n.Models) > 0 {
		all = append(all, tidemill.Remains{Place: "the ledger", What: "the names of its models, with the places behind which a version counts again, so that a late one does not",
			Ends: "never: they follow from the facts"})
	}
	if len(n.Runs) > 0 {
		all = append(all, tidemill.Remains{Place: "machines that ran it", What: "files that they have fetched, by digest and without names, in their caches",
			Ends: "when the folder cache below their data folder is removed"})
	}
	return all
}

// wordsOf say what our own streams hold of a key.
func wordsOf(stream string) string {
	switch stream {
	case tidemill.StreamFacts:
		return "what happened to its runs and models, with the events that asked for runs, and this receipt"
	case tidemill.StreamProgress:
		return "the progress of its runs"
	case tidemill.StreamDeadLetters:
		return "its dead letters, which hold their events, and their receipts"
	case tidemill.StreamCommands:
		return "what people have asked for about it, and where its end lies"
	case tidemill.StreamClock:
		return "the ticks that were due for it"
	}
	if of, parked := tidemill.CutParked(stream); parked {
		return "its events of the stream " + of + " that had to wait; they are not delivered any more"
	}
	return "its events"
}

func onStream(stream string, retention time.Duration, now time.Time) tidemill.Remains {
	r := tidemill.Remains{Place: "stream " + stream, What: wordsOf(stream), Ends: "never: the stream does not expire"}
	if retention != config.Forever {
		r.Until = new(now.Add(retention).UTC().Truncate(time.Second))
		r.Ends = "by the stream's retention; Kafka removes whole segments, which can take a little longer"
	}
	return r
}

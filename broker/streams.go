package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemill.dev"
)

// StreamSpec is a stream as the config wants it.
type StreamSpec struct {
	Name            string
	Partitions      int
	Retention       time.Duration // 0 keeps events for ever
	KeyOrdered      bool          // some reader needs each key's order
	Builtin         bool          // of Tidemill itself rather than of the user's file
	MaxMessageBytes int           // 0 leaves it to Kafka
	// Beside is the stream whose events wait here, each in the partition that it
	// came from; empty is the one that the name tells, if any.
	Beside string
}

// EnsureOptions say how far EnsureStreams may go.
type EnsureOptions struct {
	Reorder     bool // grow partitions even where keys then change partition
	DryRun      bool // report what would change, and change nothing
	Replication int  // 0: three where there are three brokers, else one
}

// EnsureReport is what EnsureStreams did, and what it left alone.
type EnsureReport struct {
	Changes  []Change
	Drift    []Drift
	Unknown  []string // streams of this install that the config does not name
	Warnings []string
}

// Change is one thing that EnsureStreams did, or would do.
type Change struct {
	Stream, What, From, To string
}

// Drift is one difference that EnsureStreams does not close.
type Drift struct {
	Stream, What, Want, Have string
	Why, Next                string
}

// EnsureStreams creates the streams that are missing and alters those that
// differ. It never shrinks and never deletes. It looks, decides, acts and looks
// again until nothing is left to do, so that several processes may run it at
// once: whoever creates a stream first, all end with the same one. Every
// partition then has a leader.
func (b *Broker) EnsureStreams(ctx context.Context, specs []StreamSpec, o EnsureOptions) (EnsureReport, error) {
	if err := checkSpecs(specs); err != nil {
		return EnsureReport{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, ensurePatience)
	defer cancel()
	var (
		changes []Change
		w       backoff
		same    steadiness
	)
	for {
		found, err := persist(ctx, b.findStreams)
		if err != nil {
			return EnsureReport{}, fmt.Errorf("look at the streams: %w", err)
		}
		todo, report, err := plan(specs, found, o)
		if err != nil {
			return EnsureReport{}, err
		}
		changes = remember(changes, todo.changes())
		report.Changes = changes
		if o.DryRun {
			return report, nil
		}
		if todo.none() {
			return report, b.awaitLeaders(ctx, found.servers, specs)
		}
		err = b.applyPlan(ctx, found.steward, todo)
		if err != nil && !passing(err) {
			return report, err
		}
		if ended := w.wait(ctx); ended != nil || err == nil && same.still(todo) {
			return report, unsettled(todo, errors.Join(err, ended))
		}
	}
}

const (
	// ensurePatience is how long EnsureStreams waits for what may pass.
	ensurePatience = 90 * time.Second
	// ensureRounds is how often a change is made that does not stay, and
	// ensureSettles how long at least: a broker that has much to do tells of what
	// it was just told many seconds later, and until then as it was before.
	ensureRounds  = 12
	ensureSettles = 45 * time.Second
)

// steadiness is since when, and for how many rounds, the same was left to do.
type steadiness struct {
	left   string
	since  time.Time
	rounds int
}

// still reports whether that has gone on for too long to pass.
func (s *steadiness) still(todo actions) bool {
	if left := fmt.Sprint(todo.changes()); left != s.left {
		*s = steadiness{left: left, since: time.Now()}
	}
	s.rounds++
	return s.rounds >= ensureRounds && time.Since(s.since) > ensureSettles
}

// unsettled says what kept the streams from being as they should.
func unsettled(todo actions, err error) error {
	if err != nil {
		return fmt.Errorf("ensure streams: %w: is Kafka restarting? Run again", err)
	}
	return fmt.Errorf("ensure streams: these do not stay as they are set: %v: does another process alter them, or does Kafka have a policy against it?", todo.changes())
}

func checkSpecs(specs []StreamSpec) error {
	seen := make(map[string]bool, len(specs))
	for _, s := range specs {
		if err := tidemill.CheckStream(s.Name); err != nil {
			return err
		}
		switch {
		case seen[s.Name]:
			return fmt.Errorf("stream %q is given twice: drop one", s.Name)
		case s.Partitions < 1:
			return fmt.Errorf("stream %q has %d partitions: give it one or more", s.Name, s.Partitions)
		case s.Retention < 0 || s.Retention > 0 && s.Retention < time.Millisecond:
			return fmt.Errorf("stream %q has a retention of %v: give it a millisecond or more, or 0 to keep events for ever", s.Name, s.Retention)
		case s.MaxMessageBytes < 0:
			return fmt.Errorf("stream %q has a largest message of %d bytes: give a positive number, or 0", s.Name, s.MaxMessageBytes)
		}
		seen[s.Name] = true
	}
	return nil
}

// remember adds the changes of one round to those before. A change that needed
// two rounds to show is one change.
func remember(before, now []Change) []Change {
	for _, c := range now {
		same := func(o Change) bool { return o.Stream == c.Stream && o.What == c.What }
		if !slices.ContainsFunc(before, same) {
			before = append(before, c)
		}
	}
	return before
}

package deliver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/triggers/letters"
)

const (
	intakeLetters = 64      // that one transaction takes in
	intakeBytes   = 1 << 20 // about, and one letter at least
	// maxRecalled is how large an event may be to be parked, with room for its
	// history.
	maxRecalled = maxParked - 128<<10
)

// gatherLetters reads the letters of an act that come next.
func (l *lane) gatherLetters(ctx context.Context, number int32, a *asking, done, n int) (*intake, error) {
	mine := a.of[number]
	some := mine[done : done+n]
	found := make([]*recalled, n)
	if err := l.readLetters(ctx, some, func(at int, in *broker.Incoming) error {
		one, err := l.recall(ctx, number, a, &some[at], in)
		found[at] = one
		return err
	}); err != nil {
		return nil, err
	}
	in := &intake{act: a.act.Offset, upTo: done}
	bytes := 0
	for _, one := range found {
		if one != nil {
			if bytes += viewSize(&one.view); bytes > intakeBytes && len(in.all) > 0 {
				break
			}
			in.all = append(in.all, *one)
		}
		in.upTo++
	}
	in.last = in.upTo == len(mine)
	return in, nil
}

// readLetters hands those letters to fn that have no receipt and can be read, in
// the order of the log.
func (l *lane) readLetters(ctx context.Context, some []askedLetter, fn func(at int, in *broker.Incoming) error) error {
	order := make([]int, 0, len(some))
	for at := range some {
		if !some[at].over {
			order = append(order, at)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(some[a].Partition, some[b].Partition), cmp.Compare(some[a].Offset, some[b].Offset))
	})
	for len(order) > 0 {
		first := some[order[0]]
		failed := error(nil)
		from := broker.Position{Stream: tidemill.StreamDeadLetters, Partition: first.Partition, Offset: first.Offset}
		left := order
		_, err := l.d.o.Broker.Read(ctx, from, loadBytes, func(in *broker.Incoming) bool {
			left = l.pass(some, left, first.Partition, in.Offset)
			for len(left) > 0 && some[left[0]].Partition == first.Partition && some[left[0]].Offset == in.Offset && failed == nil {
				failed = fn(left[0], in)
				left = left[1:]
			}
			return failed == nil && len(left) > 0 && some[left[0]].Partition == first.Partition
		})
		if err == nil {
			err = failed
		}
		if err != nil {
			return fmt.Errorf("read the dead letters to be replayed: %w", err)
		}
		if len(left) == len(order) {
			left = l.pass(some, left, first.Partition, first.Offset+1)
		}
		order = left
	}
	return nil
}

// pass leaves out letters of a partition that lie before an offset, where the
// log holds nothing any more.
func (l *lane) pass(some []askedLetter, order []int, partition int32, offset int64) []int {
	for len(order) > 0 && some[order[0]].Partition == partition && some[order[0]].Offset < offset {
		l.absent(&some[order[0]], "the log does not hold it")
		order = order[1:]
	}
	return order
}

func (l *lane) absent(r *askedLetter, why string) {
	l.d.o.Logger.Warn("a dead letter that shall be replayed is not there", "event", r.ID, "stream", tidemill.StreamDeadLetters, "partition", r.Partition, "offset", r.Offset, "reason", why)
}

// recall takes the event out of a letter. A letter that is not the one that was
// asked for is passed over; one whose event cannot be parked fails again at once.
func (l *lane) recall(ctx context.Context, number int32, a *asking, r *askedLetter, in *broker.Incoming) (*recalled, error) {
	if in.Err != nil || in.ID != r.ID {
		l.absent(r, "another event lies there")
		return nil, nil
	}
	letter, err := letters.Read(&in.View)
	if err != nil || letter.Trigger != a.act.Trigger || letter.Stream != l.stream.Name || letter.Partition != number {
		l.absent(r, "it is not as the act says")
		return nil, nil
	}
	v, err := letter.Original()
	if err == nil && viewSize(&v) > maxRecalled {
		err = fmt.Errorf("the event is too large to be parked: it may have %d KiB", maxRecalled>>10)
	}
	ref := refOf(r)
	if err != nil {
		return nil, l.refuse(ctx, a, ref, &in.View, fmt.Sprintf("trigger %s: the dead letter cannot be replayed: %s", a.act.Trigger, err))
	}
	return &recalled{trigger: a.act.Trigger, replay: replayName(a.act.ID, letter.Replay), letter: ref.String(), source: letter.Offset, view: v}, nil
}

// refuse puts a letter in the place of one that cannot even be tried.
func (l *lane) refuse(ctx context.Context, a *asking, ref letterRef, letter *broker.View, reason string) error {
	v, err := letters.Again(letter, a.act.ID, reason, time.Now())
	if err != nil {
		return err
	}
	own := letter.Clone()
	if err := l.d.letters.publish(ctx, &v); err != nil {
		return err
	}
	return l.d.letters.resolve(ctx, ref, &own, letters.Receipt{Outcome: letters.FailedAgain, Reason: reason, By: a.act.By, Act: a.act.ID, NewLetter: v.ID})
}

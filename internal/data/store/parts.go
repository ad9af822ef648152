package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// part is how one of several that work on an attempt is called: w1 is the second
// worker, ps0 the first parameter server.
var part = regexp.MustCompile(`^(w|ps)(0|[1-9][0-9]{0,4})$`)

// PutPartLog stores a chunk of the log of one of several that work on an attempt,
// but for the first worker, whose log is the attempt's. Each has its own, for no
// two can count chunks together.
func (s *Store) PutPartLog(ctx context.Context, run string, attempt int, who string, seq int, chunk []byte) error {
	if err := checkPart(run, attempt, who); err != nil {
		return err
	}
	if seq < 0 {
		return invalid("chunk %d of a log cannot be: they count from 0", seq)
	}
	if seq == 0 { // who is there is known before what it says
		if err := s.bucket.put(ctx, partsOf(run, attempt)+who, nil); err != nil {
			return fmt.Errorf("note that attempt %d of run %s has %s: %w", attempt, run, who, err)
		}
	}
	if err := s.bucket.put(ctx, partLogKey(run, attempt, who, seq), chunk); err != nil {
		return fmt.Errorf("put chunk %d of the log of %s, attempt %d of run %s: %w", seq, who, attempt, run, err)
	}
	return nil
}

// ReadPartLog is ReadLog of such a log.
func (s *Store) ReadPartLog(ctx context.Context, run string, attempt int, who string, from int, fn func(seq int, chunk []byte) error) error {
	if err := checkPart(run, attempt, who); err != nil {
		return err
	}
	for seq := max(from, 0); ; seq++ {
		chunk, err := s.bucket.get(ctx, partLogKey(run, attempt, who, seq))
		switch {
		case errors.Is(err, ErrNotFound):
			return nil
		case err != nil:
			return fmt.Errorf("read chunk %d of the log of %s, attempt %d of run %s: %w", seq, who, attempt, run, err)
		}
		if err := fn(seq, chunk); err != nil {
			return err
		}
	}
}

// LogParts are those of an attempt that have said something, besides the first
// worker: workers before servers, in their order.
func (s *Store) LogParts(ctx context.Context, run string, attempt int) (all []string, err error) {
	if err := checkRun(run); err != nil {
		return nil, err
	}
	prefix := partsOf(run, attempt)
	err = s.bucket.list(ctx, prefix, func(i item) error {
		if who := strings.TrimPrefix(i.key, prefix); part.MatchString(who) {
			all = append(all, who)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list who has said something in attempt %d of run %s: %w", attempt, run, err)
	}
	slices.SortFunc(all, byPart)
	return all, nil
}

// byPart puts workers before servers, and 2 before 10.
func byPart(a, b string) int {
	switch server := strings.HasPrefix(a, "ps"); {
	case server && !strings.HasPrefix(b, "ps"):
		return 1
	case !server && strings.HasPrefix(b, "ps"):
		return -1
	case len(a) != len(b):
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func checkPart(run string, attempt int, who string) error {
	if err := checkRun(run); err != nil {
		return err
	}
	if attempt < 1 || !part.MatchString(who) {
		return invalid("%q of attempt %d of run %s cannot be", who, attempt, run)
	}
	return nil
}

func partsOf(run string, attempt int) string {
	return fmt.Sprintf("%s%s/parts-%04d/", runsPrefix, run, attempt)
}

func partLogKey(run string, attempt int, who string, seq int) string {
	return fmt.Sprintf("%s%s/log-%04d-%s-%08d", runsPrefix, run, attempt, who, seq)
}

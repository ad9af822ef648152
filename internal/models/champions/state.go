package champions

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// state is the packed state of a model's fold. It is packed because there may be 20,000 models, and
// facts about each are rare. It has only what decides about the fields of a Champion.
type state struct {
	packed []byte
	next   int64   // offset after the last folded fact
	files  []files // artifacts of a few versions whose registration was read
}

// files is the artifact of a version.
type files struct {
	version  int
	artifact string
}

// states lists the states of a version; a packed state is an index of it.
var states = [...]tidemill.VersionState{tidemill.VersionRegistered, tidemill.VersionAwaiting, tidemill.VersionRefused, tidemill.VersionPromoted, tidemill.VersionTrial, tidemill.VersionCanary}

func pack(m *fold.Model) []byte {
	p := packer(make([]byte, 0, 64+64*len(m.Versions)))
	p.text(m.Key)
	p.numbers(m.Next, int64(m.Last), int64(m.Champion), int64(m.Previous), m.Turn, flag(m.Pin != nil))
	p.numbers(int64(len(m.Versions)))
	making := ""
	for i := range m.Versions {
		h := &m.Versions[i]
		p.id(h.Run)
		p.numbers(int64(h.Number), int64(slices.Index(states[:], h.State)))
		p.mark(h.Mark, &making)
		p.time(h.Began)
		p.time(h.At)
	}
	p.numbers(int64(len(m.Floors)))
	for _, f := range m.Floors {
		p.mark(f, &making)
	}
	if m.Unserved != nil || m.Canary != nil { // rare, so the others take no byte
		p.numbers(flag(m.Unserved != nil), flag(m.Canary != nil))
	}
	if m.Unserved != nil {
		p.text(m.Unserved.Scorer)
	}
	if c := m.Canary; c != nil {
		p.numbers(int64(c.Version), int64(c.Hold), int64(c.Least), int64(c.Until), int64(math.Float64bits(c.Share)), int64(math.Float64bits(c.Worse)))
		p.text(c.By)
		p.time(c.At)
		p.numbers(flag(c.Unserved != nil))
		if c.Unserved != nil {
			p.text(c.Unserved.Scorer)
		}
	}
	return slices.Clone(p) // copy without spare capacity
}

func unpack(name string, packed []byte) *fold.Model {
	u := unpacker(packed)
	m := &fold.Model{Name: name, Key: u.text(), Next: u.number(), Last: int(u.number()), Champion: int(u.number()), Previous: int(u.number()), Turn: u.number()}
	if u.number() == 1 {
		m.Pin = &fold.Pin{}
	}
	making := ""
	for range u.number() {
		h := fold.Held{Run: u.id(), Number: int(u.number())}
		if s := u.number(); s >= 0 {
			h.State = states[s]
		}
		h.Mark, h.Began, h.At = u.mark(&making), u.time(), u.time()
		m.Versions = append(m.Versions, h)
	}
	for range u.number() {
		m.Floors = append(m.Floors, u.mark(&making))
	}
	if len(u) == 0 {
		return m
	}
	unserved, canary := u.number() == 1, u.number() == 1
	if unserved {
		m.Unserved = &fold.Unserved{Scorer: u.text()}
	}
	if canary {
		c := &fold.Canary{Version: int(u.number())}
		c.Hold, c.Least, c.Until = time.Duration(u.number()), int(u.number()), time.Duration(u.number())
		c.Share, c.Worse = math.Float64frombits(uint64(u.number())), math.Float64frombits(uint64(u.number()))
		c.By, c.At = u.text(), u.time()
		if u.number() == 1 {
			c.Unserved = &fold.Unserved{Scorer: u.text()}
		}
		m.Canary = c
	}
	return m
}

type packer []byte

func (p *packer) numbers(all ...int64) {
	for _, n := range all {
		*p = binary.AppendVarint(*p, n)
	}
}

func (p *packer) text(s string) {
	p.numbers(int64(len(s)))
	*p = append(*p, s...)
}

// The ids of runs are most of a packed state. Those that [tidemill.ID] makes have 26 letters of five bits.
const (
	idLetters = 26
	wholeID   = 24 // letters that fill whole bytes
	packedID  = -1 // length that says that a packed id follows
)

var idLetter = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func (p *packer) id(s string) {
	if len(s) != idLetters || strings.ContainsAny(s, "\r\n") { // the decoder skips line breaks
		p.text(s)
		return
	}
	whole, err := idLetter.DecodeString(s[:wholeID])
	if err != nil {
		p.text(s)
		return
	}
	p.numbers(packedID)
	*p = append(append(*p, whole...), s[wholeID:]...)
}

// mark packs a mark. All marks of a model mostly have the same making, which is packed once.
func (p *packer) mark(m tidemill.Mark, making *string) {
	p.numbers(int64(m.Partition), m.Offset, m.Number, flag(m.Making != *making))
	if m.Making != *making {
		p.text(m.Making)
		*making = m.Making
	}
}

func (p *packer) time(at time.Time) { p.numbers(at.Unix(), int64(at.Nanosecond())) }

func flag(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

// unpacker reads bytes that packer has written in this process.
type unpacker []byte

func (u *unpacker) number() int64 {
	n, size := binary.Varint(*u)
	*u = (*u)[size:]
	return n
}

func (u *unpacker) text() string {
	n := u.number()
	s := string((*u)[:n])
	*u = (*u)[n:]
	return s
}

func (u *unpacker) id() string {
	before := *u
	if u.number() != packedID {
		*u = before
		return u.text()
	}
	const size = wholeID * 5 / 8
	s := idLetter.EncodeToString((*u)[:size]) + string((*u)[size:size+idLetters-wholeID])
	*u = (*u)[size+idLetters-wholeID:]
	return s
}

func (u *unpacker) mark(making *string) tidemill.Mark {
	m := tidemill.Mark{Partition: int32(u.number()), Offset: u.number(), Number: u.number()}
	if u.number() == 1 {
		*making = u.text()
	}
	m.Making = *making
	return m
}

func (u *unpacker) time() time.Time { return time.Unix(u.number(), u.number()).UTC() }

// apply folds a fact into the state, and returns the model after it; nil if the fact was folded
// before.
func (s *state) apply(name string, f fold.Fact) *fold.Model {
	if f.Offset < s.next {
		return nil
	}
	m := &fold.Model{}
	if s.packed != nil {
		m = unpack(name, s.packed)
	}
	v := m.Apply(f)
	m.Changes, m.Asked, m.Owed = nil, nil, nil
	s.packed, s.next = pack(m), m.Next
	if v.Registered != nil {
		s.files = append(s.files, files{v.Registered.Number, v.Registered.Artifact})
	}
	s.files = slices.DeleteFunc(s.files, func(f files) bool { return !isNear(m, f.version) })
	return m
}

// isNear reports whether a version may soon be asked for: it is the champion, the previous one, the canary, or
// one of the two newest. Artifacts of other versions are looked up.
func isNear(m *fold.Model, version int) bool {
	return m.Find(version) != nil && (version == m.Champion || version == m.Previous || version > m.Last-2 || m.Canary != nil && version == m.Canary.Version)
}

// artifact returns the artifact of a version, empty if it is not known here.
func (s *state) artifact(version int) string {
	for _, f := range s.files {
		if f.version == version {
			return f.artifact
		}
	}
	return ""
}

// snapshot puts the ledger's models into the table. Of each model it takes the newer state, because
// Redis may be behind. If the stream of facts was created again, it takes all states of the ledger.
func (t *Table) snapshot(ctx context.Context, anew bool) error {
	all, places, last, err := t.read(ctx)
	if err != nil {
		return err
	}
	if anew {
		clear(t.last)
		t.progress.restart()
		t.cells.forEach(func(name string, _ *cell) {
			if _, still := all[name]; !still {
				all[name] = state{}
			}
		})
	}
	t.last.Merge(last)
	for _, p := range places {
		t.progress.tell(p.Partition, p.Offset)
	}
	t.cells.add(all)
	var changes []change
	for name, s := range all {
		c := t.cells.find(name)
		if !anew && s.next <= c.state.next {
			continue
		}
		c.state = s
		m := s.model(name)
		if now, changed := c.show(m); changed || anew { // the same number means another version then
			changes = append(changes, change{name, now})
		}
		if now, changed := c.showCanary(m); changed || anew && m.Canary != nil {
			changes = append(changes, change{CanaryName(name), now})
		}
	}
	for _, p := range places {
		t.progress.noteVisible(p.Partition, p.Offset)
	}
	t.announce(changes)
	return nil
}

// model returns the unpacked state.
func (s *state) model(name string) *fold.Model {
	if s.packed == nil {
		return &fold.Model{Name: name}
	}
	return unpack(name, s.packed)
}

// read reads all models from the ledger once it has all facts. It reads all models again if the
// ledger has lost facts meanwhile.
func (t *Table) read(ctx context.Context) (map[string]state, []broker.Position, ledger.LastFacts, error) {
	for {
		if err := t.o.Ledger.CaughtUp(ctx); err != nil {
			return nil, nil, nil, err
		}
		all := map[string]state{}
		places, last, err := t.o.Ledger.EachModel(ctx, func(m *fold.Model) { all[m.Name] = state{packed: pack(m), next: m.Next} })
		if err == nil {
			err = t.onLog(ctx, places)
		}
		switch {
		case err == nil:
			return all, places, last, nil
		case errors.Is(err, errLost): // the ledger will notice it
			if err := t.pause(ctx); err != nil {
				return nil, nil, nil, err
			}
		case !errors.Is(err, ledger.ErrCatchingUp):
			return nil, nil, nil, err
		}
	}
}

// pause waits a while, and notes the reason.
func (t *Table) pause(ctx context.Context) error {
	t.progress.fail(fmt.Errorf("the ledger has facts that stream %s does not have; waiting until it has read the stream again", tidemill.StreamFacts))
	return retry.Sleep(ctx, firstPause)
}

// onLog returns an error if the log ends before the places. It reads the ends after the places, so
// that new facts cause no error.
func (t *Table) onLog(ctx context.Context, places []broker.Position) error {
	ends, err := t.o.Broker.Ends(ctx, tidemill.StreamFacts)
	if err != nil {
		return err
	}
	at := map[int32]int64{}
	for _, end := range ends {
		at[end.Partition] = end.Offset
	}
	for _, p := range places {
		if p.Offset > at[p.Partition] {
			return back(p.Partition, at[p.Partition], p.Offset)
		}
	}
	return nil
}

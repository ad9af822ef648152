package champions

import (
	"slices"
	"sync"
)

// progress is how far the table has come, by partition. told is set before what
// is behind it can be seen, and have after it can: so whoever has seen something
// finds it in told, and whoever waits for have sees it.
type progress struct {
	mu      sync.Mutex
	told    []int64
	have    []int64
	err     error // why it does not come on
	lasting error // what has happened to the stream for good
	changed chan struct{}
	waiting int
	wake    func() // ends a wait for facts
}

// raise sets one of a slice's places, which only grow.
func raise(places []int64, partition int32, next int64) []int64 {
	for len(places) <= int(partition) {
		places = append(places, 0)
	}
	places[partition] = max(places[partition], next)
	return places
}

func (p *progress) tell(partition int32, next int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = raise(p.told, partition, next)
}

// reach notes what can be seen now.
func (p *progress) reach(partition int32, next int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told, p.have = raise(p.told, partition, next), raise(p.have, partition, next)
	close(p.changed)
	p.changed = make(chan struct{})
}

// restart forgets all places: the facts were begun anew.
func (p *progress) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told, p.have = nil, nil
}

// places are those of told.
func (p *progress) places() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.told)
}

// reached is how far a partition can be seen.
func (p *progress) reached(partition int32) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if int(partition) >= len(p.have) {
		return 0
	}
	return p.have[partition]
}

func (p *progress) partitions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.have)
}

// covers tells whether some places have been reached, and what is closed when
// there is more.
func (p *progress) covers(places []int64) (bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, next := range places {
		if next > 0 && (i >= len(p.have) || p.have[i] < next) {
			return false, p.changed
		}
	}
	return true, nil
}

// await counts those who wait. While there are any the reader looks often for
// what brings no facts.
func (p *progress) await(by int) {
	p.mu.Lock()
	p.waiting += by
	wake := p.wake
	p.mu.Unlock()
	if by > 0 && wake != nil {
		wake()
	}
}

// look notes how a wait for facts is ended, and tells whether somebody waits.
func (p *progress) look(wake func()) (awaited bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wake = wake
	return p.waiting > 0
}

// fail notes why it does not come on, and tells whether that is news. Nil is that
// it does.
func (p *progress) fail(err error) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	news = (p.err == nil) != (err == nil)
	p.err = err
	return news
}

// spoil notes what will not pass.
func (p *progress) spoil(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lasting = err
}

func (p *progress) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	return p.lasting
}

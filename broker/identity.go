package broker

import (
	"context"
	"fmt"
	"sync"

	"github.com/segmentio/kafka-go"
)

// identity is a producer id and its epoch, under which the broker counts the
// sequence of a partition's batches.
type identity struct {
	producer int64
	epoch    int16
}

var noIdentity = identity{-1, -1}

// identities hands out the producer's identity. A partition that has lost
// track of its sequence asks for another, and only that partition changes:
// the others keep theirs, and with it the broker's memory of what they have
// sent, so that their retries stay free of duplicates.
type identities struct {
	p      *Producer
	asking sync.Mutex // held while Kafka is asked, so that one asks for all
	mu     sync.Mutex // never held for long: burn is called under a partition's lock
	now    identity
	ok     bool
}

// get returns an identity that a partition has not used yet.
func (i *identities) get(ctx context.Context) (identity, error) {
	if id, ok := i.known(); ok {
		return id, nil
	}
	i.asking.Lock()
	defer i.asking.Unlock()
	if id, ok := i.known(); ok {
		return id, nil
	}
	id, err := i.p.b.initProducer(ctx, "", noIdentity)
	if err != nil {
		return noIdentity, err
	}
	i.mu.Lock()
	i.now, i.ok = id, true
	i.mu.Unlock()
	return id, nil
}

func (i *identities) known() (identity, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.now, i.ok
}

// burn makes the next get return a new identity, unless that has happened.
func (i *identities) burn(used identity) {
	i.mu.Lock()
	if i.now == used {
		i.ok = false
	}
	i.mu.Unlock()
}

// initProducer asks for a producer id. With a transactional id it also fences
// whoever used that id before and aborts what they left open.
func (b *Broker) initProducer(ctx context.Context, transactional string, old identity) (identity, error) {
	res, err := b.client.InitProducerID(ctx, &kafka.InitProducerIDRequest{
		TransactionalID:      transactional,
		TransactionTimeoutMs: int(b.transactionTimeout.Milliseconds()),
		ProducerID:           int(old.producer),
		ProducerEpoch:        int(old.epoch),
	})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		return noIdentity, fmt.Errorf("ask for a producer id: %w", err)
	}
	return identity{int64(res.Producer.ProducerID), int16(res.Producer.ProducerEpoch)}, nil
}

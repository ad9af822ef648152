package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"tidemill.dev/broker/internal/wire"
)

// spoken is one request that we speak, in the lowest version that does.
type spoken struct {
	api     protocol.ApiKey
	version int16
}

// needs is what a Kafka must understand: Apache Kafka does since 2.5, which
// brought stable offsets (OffsetFetch 7) and fencing by group metadata
// (TxnOffsetCommit 3).
func needs() []spoken {
	return []spoken{
		{protocol.Produce, 8}, {protocol.Fetch, 11}, {protocol.ListOffsets, 5}, {protocol.Metadata, 8},
		{protocol.OffsetCommit, 7}, {protocol.OffsetFetch, 7}, {protocol.FindCoordinator, 1},
		{protocol.JoinGroup, 5}, {protocol.SyncGroup, 3}, {protocol.Heartbeat, 3}, {protocol.LeaveGroup, 1},
		{protocol.InitProducerId, 1}, {protocol.AddPartitionsToTxn, 1}, {protocol.AddOffsetsToTxn, 1},
		{protocol.TxnOffsetCommit, 3}, {protocol.EndTxn, 1},
		{protocol.CreateTopics, 2}, {protocol.CreatePartitions, 0},
		{protocol.DescribeConfigs, 1}, {protocol.IncrementalAlterConfigs, 0},
	}
}

// probe asks each address in turn until one answers, and checks what it speaks.
func (d *dialer) probe(ctx context.Context) error {
	var failed []error
	for _, address := range d.seeds {
		err := d.probeOne(ctx, address)
		if err == nil {
			return nil
		}
		failed = append(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

func (d *dialer) probeOne(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := d.dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer boundBy(ctx, conn)()
	pc := protocol.NewConn(&modest{Conn: conn}, d.clientID)
	answer, err := pc.RoundTrip(new(apiversions.Request))
	if err != nil {
		return fmt.Errorf("ask Kafka at %s what it speaks: %w%s", address, err, d.probeHint(err))
	}
	res := answer.(*apiversions.Response)
	if err := codeError(res.ErrorCode, ""); err != nil {
		return fmt.Errorf("ask Kafka at %s what it speaks: %w", address, err)
	}
	if err := checkSpoken(address, res.ApiKeys); err != nil {
		return err
	}
	// A Kafka that wants a user answers strangers, but only what it speaks.
	pc.SetVersions(map[protocol.ApiKey]int16{protocol.Metadata: 8})
	answer, err = pc.RoundTrip(&metadata.Request{TopicNames: []string{}})
	if err != nil {
		return fmt.Errorf("ask Kafka at %s for its brokers: %w%s", address, err, d.userHint())
	}
	d.learn(serversOf(answer.(*metadata.Response)))
	return nil
}

func serversOf(m *metadata.Response) []wire.BrokerNode {
	all := make([]wire.BrokerNode, len(m.Brokers))
	for i, s := range m.Brokers {
		all[i] = wire.BrokerNode{ID: s.NodeID, Host: s.Host, Port: s.Port}
	}
	return all
}

func (d *dialer) userHint() string {
	if d.security.Mechanism == "" {
		return ": it may want a user: give a SASL mechanism, a user and a password file"
	}
	return ""
}

func (d *dialer) probeHint(err error) string {
	switch {
	case toldByPeer(err):
		return tlsHint(err) // with TLS 1.3 a refused certificate shows only now
	case !d.security.TLS:
		return ": is this Kafka? It may expect TLS: turn TLS on (--kafka-tls)"
	}
	return ": is this Kafka?"
}

// checkSpoken says which of our needs a broker does not meet.
func checkSpoken(address string, offered []apiversions.ApiKeyResponse) error {
	ranges := make(map[protocol.ApiKey]apiversions.ApiKeyResponse, len(offered))
	for _, o := range offered {
		ranges[protocol.ApiKey(o.ApiKey)] = o
	}
	var missing []string
	for _, n := range needs() {
		has, ok := ranges[n.api]
		switch {
		case !ok:
			missing = append(missing, n.api.String())
		case has.MaxVersion < n.version:
			missing = append(missing, fmt.Sprintf("%s %d (has %d)", n.api, n.version, has.MaxVersion))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("use Kafka at %s: it does not speak %s: upgrade to Apache Kafka 2.5 or later",
		address, strings.Join(missing, ", "))
}

// codeError turns a protocol's error code into an error, with what the broker
// said about it.
func codeError(code int16, message string) error {
	switch {
	case code == 0:
		return nil
	case message == "":
		return kafka.Error(code)
	}
	return fmt.Errorf("%w: %s", kafka.Error(code), message)
}

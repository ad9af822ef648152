package embedded

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// kfake, opened after a kill, takes transactions that were open for aborted but
// writes no marker that says so. That has two consequences. A reader that was
// told of the abort waits for the marker and drops what the producer, whose id
// comes back with its transactional id, committed since. And at the next kill
// the replay meets that later commit's marker first and takes it for the end of
// the open transaction: what was aborted becomes visible. So the markers are
// written here, before anyone is served.
//
// It happens in a start of its own, after the one that has closed in order: only
// then are the epochs written down by which kfake fences the producers of those
// transactions, who would otherwise be told that their commit succeeded.

// openTransaction is one producer's in one partition.
type openTransaction struct {
	pid       int64
	epoch     int16
	topic     string
	partition int32
}

// openTransactions finds the transactions without a marker at their end.
func openTransactions(dir string) ([]openTransaction, error) {
	partitions, err := os.ReadDir(filepath.Join(dir, "partitions"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []openTransaction
	for _, p := range partitions {
		some, err := openIn(filepath.Join(dir, "partitions", p.Name()))
		if err != nil {
			return nil, fmt.Errorf("find open transactions in partition %s: %w", p.Name(), err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func openIn(dir string) ([]openTransaction, error) {
	topic, partition, err := partitionOf(filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	high, err := highWatermark(dir)
	if err != nil {
		return nil, err
	}
	epochs := map[int64]int16{}
	for _, segment := range segments(dir) {
		if err := eachHead(segment, high, func(head [batchHead]byte, _ int64) { follow(head, epochs) }); err != nil {
			return nil, err
		}
	}
	var all []openTransaction
	for pid, epoch := range epochs {
		all = append(all, openTransaction{pid, epoch, topic, partition})
	}
	return all, nil
}

// follow keeps the producers whose transaction is open.
func follow(head [batchHead]byte, open map[int64]int16) {
	const transactional, control = 1 << 4, 1 << 5
	attributes := binary.BigEndian.Uint16(head[21:])
	pid := int64(binary.BigEndian.Uint64(head[43:]))
	switch {
	case attributes&control != 0:
		delete(open, pid)
	case attributes&transactional != 0:
		open[pid] = int16(binary.BigEndian.Uint16(head[51:]))
	}
}

// abort writes the markers.
func abort(addr string, open []openTransaction) error {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.SetVersion(1)
	for _, o := range open {
		topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		topic.Topic, topic.Partitions = o.topic, []int32{o.partition}
		marker := kmsg.NewWriteTxnMarkersRequestMarker()
		marker.ProducerID, marker.ProducerEpoch = o.pid, o.epoch
		marker.Topics = append(marker.Topics, topic)
		req.Markers = append(req.Markers, marker)
	}
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	if err := askOnce(addr, req, resp); err != nil {
		return fmt.Errorf("abort %d transactions that a kill left open: %w", len(open), err)
	}
	for _, m := range resp.Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return fmt.Errorf("abort the transaction of producer %d in %s-%d: %w", m.ProducerID, t.Topic, p.Partition, err)
				}
			}
		}
	}
	return nil
}

const askLimit = 30 * time.Second

// askOnce sends one request on a connection of its own.
func askOnce(addr string, req kmsg.Request, resp kmsg.Response) error {
	conn, err := net.DialTimeout("tcp", addr, askLimit)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(askLimit)); err != nil {
		return err
	}
	if _, err := conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)); err != nil {
		return err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(conn, body); err != nil {
		return err
	}
	resp.SetVersion(req.GetVersion())
	body = body[4:] // the correlation id
	if req.IsFlexible() {
		body = body[1:] // no tags
	}
	return resp.ReadFrom(body)
}

package embedded

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// ClusterID is the id of the embedded Kafka, by which a process that connects to it knows it.
	ClusterID = "tidemill-embedded"

	// Apache Kafka's default is 6 s; on a laptop dead members should be found earlier.
	minSessionTimeout = 500 * time.Millisecond
)

// brokerConfigs are passed on every start: kfake stores them in its folder, and the
// passed values override the stored ones.
func brokerConfigs() map[string]string {
	return map[string]string{
		// Only whole segments are removed, so segments are small. Otherwise a laptop's streams
		// would not shrink.
		"log.segment.bytes": "16777216",
		// A group must keep its offsets even if the laptop is off for a week.
		"offsets.retention.minutes":  "525600",
		"default.replication.factor": "1",
	}
}

func startCluster(o Options, doors []*brokerListener) (*kfake.Cluster, error) {
	opts, err := clusterOptions(o, doors)
	if err != nil {
		return nil, err
	}
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("start the embedded Kafka server on %s: %w", place(o), err)
	}
	refuseEmptyPasswords(c)
	refuseCompaction(c)
	shareFetches(c)
	if o.Dir != "" {
		if err := forgetSequences(kafkaDir(o.Dir)); err != nil {
			c.Close()
			return nil, fmt.Errorf("take over the producers' sequences: %w", err)
		}
	}
	return c, nil
}

func clusterOptions(o Options, doors []*brokerListener) ([]kfake.Opt, error) {
	opts := []kfake.Opt{
		kfake.NumBrokers(o.Brokers),
		kfake.ClusterID(ClusterID),
		kfake.ListenFn(handOut(doors)),
		kfake.DefaultNumPartitions(1),
		kfake.GroupMinSessionTimeout(minSessionTimeout),
		kfake.BrokerConfigs(brokerConfigs()),
		kfake.WithLogger(logBridge{o.Logger.With("server", "kafka")}),
	}
	opts = append(opts, o.saslOptions(o.Users...)...)
	if o.Dir == "" {
		return opts, nil
	}
	if o.Sync {
		opts = append(opts, kfake.SyncWrites())
	}
	if err := closeFolder(kafkaDir(o.Dir)); err != nil {
		return nil, err
	}
	if err := o.restoreSequences(kafkaDir(o.Dir)); err != nil {
		return nil, err
	}
	if err := callMembers(kafkaDir(o.Dir)); err != nil {
		return nil, err
	}
	return append(opts, kfake.DataDir(kafkaDir(o.Dir))), forgetUsers(kafkaDir(o.Dir))
}

func kafkaDir(dir string) string { return filepath.Join(dir, "kafka") }

// forgetUsers removes the users that kfake stored in its folder, because they would override the
// users of this start.
func forgetUsers(dir string) error {
	err := os.Remove(filepath.Join(dir, "sasl.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the users of the last start: %w", err)
	}
	return nil
}

// sessionFile has the members of groups at an orderly end.
const sessionFile = "session_state.json"

// callMembers makes the members of each group join again after the start. kfake drops a member whose session has ended
// meanwhile and tells the others nothing, so its partitions would have no reader.
func callMembers(dir string) error {
	file := filepath.Join(dir, sessionFile)
	text, err := os.ReadFile(file)
	var state map[string]json.RawMessage
	var groups map[string]map[string]any
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("read the groups of the last end: %w", err)
	case json.Unmarshal(text, &state) != nil || json.Unmarshal(state["classicGroups"], &groups) != nil:
		return nil // there are no groups; kfake itself warns of a torn file
	}
	for _, g := range groups {
		g["state"] = 2 // the members are to join
	}
	if state["classicGroups"], err = json.Marshal(groups); err == nil {
		text, err = json.Marshal(state)
	}
	if err == nil {
		err = replaceFile(file, text) // it also has the open transactions
	}
	if err != nil {
		return fmt.Errorf("write the groups of the last end: %w", err)
	}
	return nil
}

// handOut makes kfake use our listeners in turn instead of choosing ports itself. kfake
// calls it for one broker after another.
func handOut(doors []*brokerListener) func(network, address string) (net.Listener, error) {
	next := 0
	return func(_, address string) (net.Listener, error) {
		if next == len(doors) {
			return nil, fmt.Errorf("no listener is left for %s", address)
		}
		next++
		return doors[next-1], nil
	}
}

// applyRetention removes expired records until the context ends.
func applyRetention(ctx context.Context, c *kfake.Cluster, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			c.ApplyRetention()
		}
	}
}

func place(o Options) string {
	if o.Dir == "" {
		return "memory"
	}
	return "folder " + kafkaDir(o.Dir)
}

const cleanupPolicy = "cleanup.policy"

// refuseCompaction answers every request that would turn compaction on with POLICY_VIOLATION. It
// refuses the whole request, because a control of kfake cannot answer for only a part.
func refuseCompaction(c *kfake.Cluster) {
	keep := func(k kmsg.Key, refuse func(kmsg.Request) kmsg.Response) {
		c.ControlKey(int16(k), func(req kmsg.Request) (kmsg.Response, error, bool) {
			resp := refuse(req)
			if resp == nil {
				return nil, nil, false
			}
			c.KeepControl()
			return resp, nil, true
		})
	}
	keep(kmsg.CreateTopics, refuseCreate)
	keep(kmsg.AlterConfigs, refuseAlter)
	keep(kmsg.IncrementalAlterConfigs, refuseIncremental)
}

func refuseCreate(r kmsg.Request) kmsg.Response {
	req, ok := r.(*kmsg.CreateTopicsRequest)
	if !ok {
		return nil
	}
	var offender string
	for _, t := range req.Topics {
		for _, c := range t.Configs {
			if compacts(c.Name, c.Value) {
				offender = t.Topic
			}
		}
	}
	if offender == "" {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	for _, t := range req.Topics {
		a := kmsg.NewCreateTopicsResponseTopic()
		a.Topic, a.ErrorCode, a.ErrorMessage = t.Topic, kerr.PolicyViolation.Code, whyNot(offender)
		resp.Topics = append(resp.Topics, a)
	}
	return resp
}

func refuseAlter(r kmsg.Request) kmsg.Response {
	req, ok := r.(*kmsg.AlterConfigsRequest)
	if !ok {
		return nil
	}
	var offender string
	for _, t := range req.Resources {
		for _, c := range t.Configs {
			if compacts(c.Name, c.Value) {
				offender = t.ResourceName
			}
		}
	}
	if offender == "" {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	for _, t := range req.Resources {
		a := kmsg.NewAlterConfigsResponseResource()
		a.ResourceType, a.ResourceName = t.ResourceType, t.ResourceName
		a.ErrorCode, a.ErrorMessage = kerr.PolicyViolation.Code, whyNot(offender)
		resp.Resources = append(resp.Resources, a)
	}
	return resp
}

func refuseIncremental(r kmsg.Request) kmsg.Response {
	req, ok := r.(*kmsg.IncrementalAlterConfigsRequest)
	if !ok {
		return nil
	}
	var offender string
	for _, t := range req.Resources {
		for _, c := range t.Configs {
			if compacts(c.Name, c.Value) && c.Op != kmsg.IncrementalAlterConfigOpDelete &&
				c.Op != kmsg.IncrementalAlterConfigOpSubtract {
				offender = t.ResourceName
			}
		}
	}
	if offender == "" {
		return nil
	}
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	for _, t := range req.Resources {
		a := kmsg.NewIncrementalAlterConfigsResponseResource()
		a.ResourceType, a.ResourceName = t.ResourceType, t.ResourceName
		a.ErrorCode, a.ErrorMessage = kerr.PolicyViolation.Code, whyNot(offender)
		resp.Resources = append(resp.Resources, a)
	}
	return resp
}

func compacts(name string, value *string) bool {
	return name == cleanupPolicy && value != nil && strings.Contains(*value, "compact")
}

func whyNot(topic string) *string {
	s := fmt.Sprintf("topic %q asks for %s=compact, which the embedded server refuses because its compaction can lose keys;"+
		" leave the setting out and use retention.ms, or run Apache Kafka", topic, cleanupPolicy)
	return &s
}

// kfake writes a batch and then, in another file, an index line about it. After a kill this line
// says whether the batch belongs to a transaction. If the process is killed between the two writes,
// kfake would treat uncommitted records as committed and assign the following lines to the wrong
// batches. The batch heads contain all the information, so the missing lines are written here.

const (
	indexLine    = 15
	indexVersion = 1
)

// completeIndexes adds the index lines that a kill left out in the last segment of every partition.
func completeIndexes(dir string) error {
	partitions, err := os.ReadDir(filepath.Join(dir, "partitions"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, p := range partitions {
		all := logSegments(filepath.Join(dir, "partitions", p.Name()))
		if len(all) == 0 {
			continue
		}
		if err := completeIndex(all[len(all)-1]); err != nil {
			return fmt.Errorf("complete the index of partition %s: %w", p.Name(), err)
		}
	}
	return nil
}

func completeIndex(segment string) error {
	var lines []byte
	if err := eachHead(segment, math.MaxInt64, func(head [batchHead]byte, _ int64) { lines = append(lines, lineOf(head)...) }); err != nil {
		return err
	}
	name := strings.TrimSuffix(segment, ".dat") + ".idx"
	info, err := os.Stat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var have int64
	if err == nil {
		have = info.Size() / indexLine * indexLine
	}
	if have >= int64(len(lines)) {
		return nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(lines[have:], have)
	return errors.Join(err, f.Close())
}

// lineOf returns kfake's index line about a batch. kfake computes the line's time itself
// when it opens the folder.
func lineOf(head [batchHead]byte) []byte {
	const transactional, control = 1 << 4, 1 << 5
	line := make([]byte, indexLine)
	line[0] = indexVersion
	binary.LittleEndian.PutUint32(line[2:], binary.BigEndian.Uint32(head[12:])) // the leader's epoch
	if a := binary.BigEndian.Uint16(head[21:]); a&transactional != 0 && a&control == 0 {
		line[14] = 1
	}
	line[1] = byte(crc32.Checksum(line[2:], crc32.MakeTable(crc32.Castagnoli)))
	return line
}

// logBridge writes kfake's log lines to slog.
type logBridge struct{ log *slog.Logger }

var _ kfake.Logger = logBridge{}

// Logf logs a message of kfake. kfake logs every request at info; bridge logs these at debug.
func (b logBridge) Logf(l kfake.LogLevel, format string, args ...any) {
	level := slog.LevelDebug
	switch l {
	case kfake.LogLevelError:
		level = slog.LevelError
	case kfake.LogLevelWarn:
		level = slog.LevelWarn
	}
	if ctx := context.Background(); b.log.Enabled(ctx, level) {
		b.log.Log(ctx, level, fmt.Sprintf(format, args...))
	}
}

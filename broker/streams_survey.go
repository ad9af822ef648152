package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/listgroups"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// rateSpan is the time over which a stream's rate is measured.
const rateSpan = time.Minute

// StreamInfo is the state of one stream.
type StreamInfo struct {
	Name       string          `json:"name"`
	Partitions []PartitionInfo `json:"partitions"`
	Records    int64           `json:"records"`             // number of events
	Estimated  bool            `json:"estimated,omitempty"` // whether Records is an estimate, because transactions took some offsets
	Bytes      int64           `json:"bytes"`               // size on the disks of the leaders; -1 if Kafka does not say
	Rate       float64         `json:"rate"`                // events a second over the last minute
	Retention  time.Duration   `json:"retention"`           // 0 means for ever
	Groups     []GroupLag      `json:"groups"`
}

// MarshalJSON writes the retention as text, such as 168h0m0s or forever, and the missing groups of
// a stream as an empty list and not as null.
func (s StreamInfo) MarshalJSON() ([]byte, error) {
	type plain StreamInfo
	retention := "forever"
	if s.Retention > 0 {
		retention = s.Retention.String()
	}
	if s.Groups == nil {
		s.Groups = []GroupLag{}
	}
	return json.Marshal(struct {
		plain
		Retention string `json:"retention"` // hides the field of plain
	}{plain(s), retention})
}

// PartitionInfo is the state of one partition.
type PartitionInfo struct {
	Partition int     `json:"partition"`
	Start     int64   `json:"start"` // first offset of the log
	End       int64   `json:"end"`   // offset after the last record
	Bytes     int64   `json:"bytes"`
	Rate      float64 `json:"rate"`

	events    int64
	estimated bool
}

// GroupLag is the lag of one of our consumer groups on one stream.
type GroupLag struct {
	Group      string         `json:"group"` // short name, as for Names.Group
	Lag        int64          `json:"lag"`   // number of events that the group has not processed
	Lost       int64          `json:"lost"`  // events that retention deleted before the group read them
	Partitions []PartitionLag `json:"partitions"`
	Estimated  bool           `json:"estimated,omitempty"` // whether Lag is an estimate, because transactions took some offsets
}

// PartitionLag is the lag on one partition. Without a commit, the whole partition counts.
type PartitionLag struct {
	Partition int   `json:"partition"`
	Committed int64 `json:"committed"` // -1 if there is no commit
	Lag       int64 `json:"lag"`
	Lost      int64 `json:"lost"`
}

// surveyPatience is the time for which Streams retries passing errors.
const surveyPatience = 15 * time.Second

// Streams returns the state of this install's streams, sorted by name. Streams sends a few requests
// to each server, independent of the number of partitions, and one request for each group.
func (b *Broker) Streams(ctx context.Context) ([]StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, surveyPatience)
	defer cancel()
	infos, err := retryUntil(ctx, b.surveyStreams)
	if err != nil {
		return nil, fmt.Errorf("look at the streams: %w%s", err, aclHint(err))
	}
	return infos, nil
}

// survey holds the answers to all requests of Streams.
type survey struct {
	topics             []wire.TopicMetadata
	settings           map[string]map[string]topicSetting
	start, end, recent map[wire.TopicPartition]int64
	bytes              map[wire.TopicPartition]int64 // nil if Kafka does not say
	samples            map[wire.TopicPartition]sample
	commits            map[string]groupCommits
}

func (b *Broker) surveyStreams(ctx context.Context) ([]StreamInfo, error) {
	md, err := b.metadata(ctx)
	if err != nil {
		return nil, err
	}
	topics, err := b.ownTopics(md)
	if err != nil || len(topics) == 0 {
		return nil, err
	}
	s := survey{topics: topics}
	since := time.Now().Add(-rateSpan).UnixMilli()
	// Each function writes its own field. The ends are fetched after the commits, because otherwise
	// a commit could be beyond the end.
	err = runParallel(ctx,
		func(ctx context.Context) (err error) {
			s.start, err = b.offsetsOfAll(ctx, topics, wire.Earliest)
			return
		},
		func(ctx context.Context) (err error) { s.recent, err = b.offsetsOfAll(ctx, topics, since); return },
		func(ctx context.Context) (err error) { s.bytes, err = b.logSizes(ctx, topics); return },
		func(ctx context.Context) (err error) { s.commits, err = b.groupCommits(ctx, md.Brokers); return },
		func(ctx context.Context) (err error) {
			s.settings, err = b.topicSettings(ctx, adminNode(md), topics)
			return
		},
	)
	if err == nil {
		s.end, err = b.offsetsOfAll(ctx, topics, wire.Latest)
	}
	if err != nil {
		return nil, err
	}
	s.samples = b.countEvents(ctx, topics, s.start, s.end)
	return b.describe(s), nil
}

// offsetsOfAll returns the first offset at or after a time in every partition, or -1 if no record
// is that new. Records of open transactions count too.
func (b *Broker) offsetsOfAll(ctx context.Context, topics []wire.TopicMetadata, at int64) (map[wire.TopicPartition]int64, error) {
	var queries []wire.OffsetQuery
	for _, t := range topics {
		for _, p := range t.Partitions {
			queries = append(queries, wire.OffsetQuery{TopicPartition: wire.TopicPartition{Topic: t.Name, Partition: p.Index}, Time: at})
		}
	}
	return b.offsetsAt(ctx, queries, false)
}

// runParallel runs all functions at once. The first error cancels the others.
func runParallel(ctx context.Context, all ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for _, f := range all {
		running.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err) // only the first cause is kept
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

func (b *Broker) describe(s survey) []StreamInfo {
	infos := make([]StreamInfo, 0, len(s.topics))
	for _, t := range s.topics {
		info := StreamInfo{Retention: retentionOf(s.settings[t.Name])}
		info.Name, _ = b.names.Stream(t.Name)
		for _, p := range t.Partitions {
			one := s.partition(wire.TopicPartition{Topic: t.Name, Partition: p.Index})
			info.Partitions = append(info.Partitions, one)
			info.Records += one.events
			info.Estimated = info.Estimated || one.estimated
			info.Bytes += one.Bytes
			info.Rate += one.Rate
		}
		if s.bytes == nil {
			info.Bytes = -1
		}
		slices.SortFunc(info.Partitions, func(x, y PartitionInfo) int { return cmp.Compare(x.Partition, y.Partition) })
		info.Groups = s.lags(info.Name, t.Name, info.Partitions, b.names.Group(""))
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(x, y StreamInfo) int { return cmp.Compare(x.Name, y.Name) })
	return infos
}

func (s survey) partition(p wire.TopicPartition) PartitionInfo {
	one := PartitionInfo{Partition: int(p.Partition), Start: s.start[p], End: s.end[p], Bytes: -1}
	if s.bytes != nil {
		one.Bytes = s.bytes[p]
	}
	if recent := s.recent[p]; recent >= 0 { // otherwise nothing was written in that time
		one.Rate = float64(max(0, one.End-recent)) / rateSpan.Seconds()
	}
	one.events = one.End - one.Start
	if of, sampled := s.samples[p]; sampled {
		one.events, one.estimated = of.between(one.Start, one.End)
		one.Rate *= of.share()
	}
	return one
}

func retentionOf(settings map[string]topicSetting) time.Duration {
	ms, err := strconv.ParseInt(settings[settingRetention].value, 10, 64)
	if err != nil || ms < 0 {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// groupCommits are the committed offsets of one group.
type groupCommits = map[wire.TopicPartition]wire.CommittedOffset

// lags returns the lags of the groups that have committed on a topic, sorted by name.
func (s survey) lags(stream, topic string, partitions []PartitionInfo, prefix string) []GroupLag {
	var all []GroupLag
	if tidemill.Bookmarked(stream) {
		return nil
	}
	for _, group := range slices.Sorted(maps.Keys(s.commits)) {
		of := s.commits[group]
		g := GroupLag{Group: strings.TrimPrefix(group, prefix)}
		reads := false
		for _, p := range partitions {
			key, committed := wire.TopicPartition{Topic: topic, Partition: int32(p.Partition)}, int64(-1)
			if o, ok := of[key]; ok {
				committed = o.Offset
			}
			reads = reads || committed >= 0
			one := lag(p, committed)
			if events, sampled := s.samples[key]; sampled {
				estimated := false
				one.Lag, estimated = events.between(max(committed, p.Start), p.End)
				g.Estimated = g.Estimated || estimated
			}
			g.Partitions = append(g.Partitions, one)
			g.Lag += one.Lag
			g.Lost += one.Lost
		}
		if reads {
			all = append(all, g)
		}
	}
	return all
}

func lag(p PartitionInfo, committed int64) PartitionLag {
	one := PartitionLag{Partition: p.Partition, Committed: committed}
	next := max(committed, p.Start)
	one.Lag = max(0, p.End-next)
	if committed >= 0 {
		one.Lost = next - committed
	}
	return one
}

// groupCommits returns the committed offsets of each of this install's groups.
func (b *Broker) groupCommits(ctx context.Context, brokers []wire.BrokerNode) (map[string]groupCommits, error) {
	groups, err := b.groups(ctx, brokers)
	if err != nil {
		return nil, err
	}
	var (
		mu  sync.Mutex
		all = make(map[string]groupCommits, len(groups))
	)
	const workers = 8
	next := make(chan string, len(groups))
	for _, g := range groups {
		next <- g
	}
	close(next)
	read := func(ctx context.Context) error {
		for group := range next {
			// A lag may be slightly old, so the request does not wait for open transactions.
			of, err := b.groupOffsets(ctx, group, nil, false)
			if isCode(err, kafka.GroupIdNotFound) {
				continue // deleted since it was listed
			}
			if err != nil {
				return err
			}
			mu.Lock()
			all[group] = of
			mu.Unlock()
		}
		return nil
	}
	return all, runParallel(ctx, slices.Repeat([]func(context.Context) error{read}, min(workers, len(groups)))...)
}

// groups returns the names of this install's groups. Each broker lists only the groups that it
// coordinates.
func (b *Broker) groups(ctx context.Context, brokers []wire.BrokerNode) ([]string, error) {
	var (
		mu    sync.Mutex
		all   []string
		calls []func(context.Context) error
	)
	for _, broker := range brokers {
		calls = append(calls, func(ctx context.Context) error {
			some, err := b.groupsOn(ctx, broker.ID)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, some...)
			return err
		})
	}
	err := runParallel(ctx, calls...)
	slices.Sort(all)
	return slices.Compact(all), err
}

func (b *Broker) groupsOn(ctx context.Context, broker int32) ([]string, error) {
	res, err := requestServer[*listgroups.Response](ctx, b, broker, new(listgroups.Request))
	if err != nil {
		return nil, err
	}
	if err := codeError(res.ErrorCode, ""); err != nil {
		return nil, fmt.Errorf("list the groups on broker %d: %w", broker, err)
	}
	var ours []string
	for _, g := range res.Groups {
		if strings.HasPrefix(g.GroupID, b.names.Group("")) {
			ours = append(ours, g.GroupID)
		}
	}
	return ours, nil
}

// logSizes returns the size of each partition on its leader's disk. It returns nil if Kafka refuses
// the request, because the request needs a permission on the whole cluster, which a shared Kafka
// may not give.
func (b *Broker) logSizes(ctx context.Context, topics []wire.TopicMetadata) (map[wire.TopicPartition]int64, error) {
	var (
		mu    sync.Mutex
		all   = map[wire.TopicPartition]int64{}
		calls []func(context.Context) error
	)
	for node, led := range byLeader(topics) {
		calls = append(calls, func(ctx context.Context) error {
			some, err := b.logSizesOn(ctx, node, led)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(all, some)
			return err
		})
	}
	err := runParallel(ctx, calls...)
	if isCode(err, kafka.ClusterAuthorizationFailed) || isCode(err, kafka.UnsupportedVersion) {
		return nil, nil
	}
	return all, err
}

// byLeader returns the partitions that each server leads.
func byLeader(topics []wire.TopicMetadata) map[int32][]wire.TopicPartition {
	all := map[int32][]wire.TopicPartition{}
	for _, t := range topics {
		for _, p := range t.Partitions {
			if p.Leader >= 0 {
				all[p.Leader] = append(all[p.Leader], wire.TopicPartition{Topic: t.Name, Partition: p.Index})
			}
		}
	}
	return all
}

func (b *Broker) logSizesOn(ctx context.Context, node int32, partitions []wire.TopicPartition) (map[wire.TopicPartition]int64, error) {
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	var frame wire.Frame
	frame.LogDirs(b.names.Install(), partitions)
	answer, err := b.call(ctx, node, &frame, nil)
	if err == nil {
		var dirs []wire.LogDir
		if dirs, err = wire.ReadLogDirs(answer); err == nil {
			return sumLogs(dirs)
		}
	}
	return nil, fmt.Errorf("read the sizes of logs: %w", err)
}

func sumLogs(dirs []wire.LogDir) (map[wire.TopicPartition]int64, error) {
	if len(dirs) == 0 { // the answer of this version if we lack the permission
		return nil, fmt.Errorf("read the sizes of logs: %w", kafka.ClusterAuthorizationFailed)
	}
	all := map[wire.TopicPartition]int64{}
	for _, d := range dirs {
		if code := kafka.Error(d.Error); code != 0 && code != kafka.KafkaStorageError { // a failed disk holds no leader
			return nil, fmt.Errorf("read the sizes of logs: %w", code)
		}
		for _, l := range d.Logs {
			if !l.Moving {
				all[l.TopicPartition] += l.Bytes
			}
		}
	}
	return all, nil
}

// resourceTopic is the resource type of a topic in config requests.
const resourceTopic = 2

// sourceTopic marks a config value that the topic itself sets.
const sourceTopic = 1

// StreamNames returns the streams of this install that Kafka has, each with its partitions and its retention.
func (b *Broker) StreamNames(ctx context.Context) (map[string]StreamSpec, error) {
	found, err := retryUntil(ctx, b.findStreams)
	if err != nil {
		return nil, fmt.Errorf("list the streams: %w", err)
	}
	all := make(map[string]StreamSpec, len(found.streams))
	for name, s := range found.streams {
		all[name] = StreamSpec{Name: name, Partitions: s.partitions, Retention: retentionOf(s.settings)}
	}
	return all, nil
}

// findStreams reads the state of this install's streams from Kafka.
func (b *Broker) findStreams(ctx context.Context) (foundStreams, error) {
	md, err := b.metadata(ctx)
	if err != nil {
		return foundStreams{}, err
	}
	found := foundStreams{brokers: len(md.Brokers), servers: md.Brokers, adminNode: adminNode(md), streams: map[string]foundStream{}}
	topics, err := b.ownTopics(md)
	if err != nil {
		return foundStreams{}, err
	}
	settings, err := b.topicSettings(ctx, adminNode(md), topics)
	if err != nil {
		return foundStreams{}, err
	}
	for _, t := range topics {
		name, _ := b.names.Stream(t.Name)
		f := foundStream{partitions: len(t.Partitions), settings: settings[t.Name]}
		if len(t.Partitions) > 0 {
			f.replication = len(t.Partitions[0].Replicas)
		}
		found.streams[name] = f
	}
	return found, nil
}

// adminNode returns the server to ask for changes and for their result. It is the controller if
// Kafka names one; with ZooKeeper, only the controller can make changes.
func adminNode(md *wire.Metadata) int32 {
	for _, broker := range md.Brokers {
		if broker.ID == md.Controller {
			return broker.ID
		}
	}
	return anyNode
}

// ownTopics returns the topics with this install's prefix.
func (b *Broker) ownTopics(md *wire.Metadata) ([]wire.TopicMetadata, error) {
	var all []wire.TopicMetadata
	for _, t := range md.Topics {
		if _, ok := b.names.Stream(t.Name); !ok || t.Internal {
			continue
		}
		if err := codeError(t.Error, ""); err != nil {
			return nil, fmt.Errorf("look at topic %s: %w", t.Name, err)
		}
		all = append(all, t)
	}
	return all, nil
}

// topicSettings returns the configs that we set, by topic and key.
func (b *Broker) topicSettings(ctx context.Context, node int32, topics []wire.TopicMetadata) (map[string]map[string]topicSetting, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	var keys []string
	for _, w := range settingsOf(StreamSpec{MaxMessageBytes: 1, NewestOnly: true}, 1) {
		keys = append(keys, w.key)
	}
	req := new(describeconfigs.Request)
	for _, t := range topics {
		req.Resources = append(req.Resources, describeconfigs.RequestResource{
			ResourceType: resourceTopic, ResourceName: t.Name, ConfigNames: keys})
	}
	res, err := requestServer[*describeconfigs.Response](ctx, b, node, req)
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[string]topicSetting, len(topics))
	for _, r := range res.Resources {
		if err := codeError(r.ErrorCode, r.ErrorMessage); err != nil {
			return nil, fmt.Errorf("read the config of topic %s: %w%s", r.ResourceName, err, aclHint(err))
		}
		entries := make(map[string]topicSetting, len(r.ConfigEntries))
		for _, e := range r.ConfigEntries {
			entries[e.ConfigName] = topicSetting{value: e.ConfigValue, own: e.ConfigSource == sourceTopic}
		}
		all[r.ResourceName] = entries
	}
	return all, nil
}

// aclHint returns the next step if Kafka's access lists refuse us.
func aclHint(err error) string {
	for _, code := range []kafka.Error{kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed, kafka.GroupAuthorizationFailed} {
		if isCode(err, code) {
			return ": let our user describe, create and alter the topics with our prefix, and read its groups"
		}
	}
	return ""
}

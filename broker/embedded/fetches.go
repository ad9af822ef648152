package embedded

import (
	"math"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// shareFetches mends how kfake ends an answer. Where the request's limit strikes
// within a partition it sends what it has read of that partition without saying
// which transactions were aborted, and a reader of committed events takes what
// they left for committed. At a partition's own limit it says so: the request's
// room is shared out among its partitions, and none is left to strike.
func shareFetches(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		shareRoom(req.(*kmsg.FetchRequest))
		return nil, nil, false
	})
}

func shareRoom(req *kmsg.FetchRequest) {
	partitions := int32(0)
	for _, t := range req.Topics {
		partitions += int32(len(t.Partitions))
	}
	share := req.MaxBytes / max(partitions, 1)
	for _, t := range req.Topics {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			p.PartitionMaxBytes = min(p.PartitionMaxBytes, share)
		}
	}
	req.MaxBytes = math.MaxInt32
}

package config

import "time"

const (
	maxReplicas    = 1000
	maxLag         = 1_000_000_000
	minIdle        = time.Second
	maxIdle        = 24 * time.Hour
	fewReplicas    = 8 // at most, where the file does not say
	replicasPerLag = 1000
	defaultIdle    = time.Minute
)

// defaultReplicas are those of a scorer that says nothing of them: none while
// there is nothing to do, and no more than there are partitions to share out.
func defaultReplicas(partitions int) Replicas {
	return Replicas{Max: min(fewReplicas, partitions), Lag: replicasPerLag, Idle: defaultIdle}
}

func (r *Replicas) read(v value) {
	lag := int(r.Lag)
	given := v.given(
		field{"min", readInteger(&r.Min, 0, maxReplicas)},
		field{"max", readInteger(&r.Max, 1, maxReplicas)},
		field{"lag", readInteger(&lag, 1, maxLag)},
		field{"idle", readWait(&r.Idle, minIdle, maxIdle)},
	)
	r.Lag = int64(lag)
	if given["max"] && r.Min > r.Max {
		v.at1("max").problem("%d is less than min, which is %d", r.Max, r.Min)
	}
}

// settle fills in how many a scorer has at most, which its stream says if the
// file does not.
func (r *Replicas) settle(partitions int) {
	if r.Max == 0 {
		r.Max = max(r.Min, defaultReplicas(partitions).Max)
	}
}

package tidemill

// What the fold reads of nearly every run, field by field. What is rare encoding/json
// reads, and what is not here it reads all of: so a field that is new needs no line
// here to be right, and one to be quick.

func (d *RunRequested) readQuickly(q *reading) {
	q.object(func(name []byte) {
		switch string(name) {
		case "cause":
			readCause(q, &d.Cause)
		case "events":
			d.Events = listOf(q, d.Events, q.raw)
		case "debounce":
			d.Debounce = q.duration()
		case "maxWait":
			d.MaxWait = q.duration()
		case "delay":
			d.Delay = q.duration()
		case "priority":
			d.Priority = q.int()
		case "again":
			d.Again = q.text()
		case "config":
			d.Config = q.text()
		default:
			q.giveUp()
		}
	})
}

func readCause(q *reading, c *Cause) {
	q.object(func(name []byte) {
		switch string(name) {
		case "source":
			c.Source = q.text()
		case "id":
			c.ID = q.text()
		default:
			q.giveUp()
		}
	})
}

func (d *RunStarted) readQuickly(q *reading) {
	q.object(func(name []byte) {
		switch string(name) {
		case "attempt":
			d.Attempt = q.int()
		case "seen":
			d.Seen = q.int64()
		case "plan":
			if d.Plan != nil {
				q.giveUp()
			}
			d.Plan = &Plan{}
			d.Plan.readQuickly(q)
		default:
			if !readWhere(q, &d.Where, name) {
				q.giveUp()
			}
		}
	})
}

func readWhere(q *reading, w *Where, name []byte) bool {
	switch string(name) {
	case "node":
		w.Node = q.text()
	case "card":
		w.Card = q.text()
	case "driver":
		w.Driver = q.text()
	case "gpus":
		w.GPUs = listOf(q, w.GPUs, q.int)
	case "image":
		w.Image = q.text()
	case "resumedFrom":
		w.ResumedFrom = q.text()
	default:
		return false
	}
	return true
}

func (d *finishedFact) readQuickly(q *reading) {
	q.object(func(name []byte) {
		switch string(name) {
		case "attempt":
			d.Attempt = q.int()
		case "outcome":
			d.Outcome = Outcome(q.text())
		case "reason":
			d.Reason = q.text()
		case "permanent":
			d.Permanent = q.bool()
		case "candidate":
			q.skip()
		default:
			if !readWhere(q, &d.Where, name) && !readResult(q, &d.Result, name) {
				q.giveUp()
			}
		}
	})
}

func readResult(q *reading, r *Result, name []byte) bool {
	switch string(name) {
	case "exit":
		r.Exit = q.int()
	case "signal":
		r.Signal = q.text()
	case "peakMemory":
		r.PeakMemory = q.int64()
	case "gpuSeconds":
		r.GPUSeconds = q.float()
	case "stages":
		r.Stages = listOf(q, r.Stages, func() Stage { return readStage(q) })
	case "artifact":
		r.Artifact = q.text()
	case "bytes":
		r.Bytes = q.int64()
	case "files":
		r.Files = q.int()
	case "metrics":
		r.Metrics = mapOf(q, r.Metrics, q.float)
	case "lastLines":
		r.LastLines = q.text()
	case "logBytes":
		r.LogBytes = q.int64()
	case "cut":
		r.Cut = q.bool()
	default:
		return false
	}
	return true
}

func readStage(q *reading) (s Stage) {
	q.object(func(name []byte) {
		switch string(name) {
		case "name":
			s.Name = q.text()
		case "seconds":
			s.Seconds = q.float()
		default:
			q.giveUp()
		}
	})
	return s
}

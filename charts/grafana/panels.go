package main

import "github.com/grafana/grafana-foundation-sdk/go/units"

// rows are the themes of the board. Each controller counts all facts and each process of a kind
// sees all streams, so queries about these take the maximum, never the sum.
func rows() []row {
	return []row{
		{"Events", events()},
		{"Triggers", triggers()},
		{"Scorers", scorers()},
		{"Runs and models", runsAndModels()},
		{"Health", health()},
	}
}

func events() []panel {
	return []panel{
		{"Events published", "Events that Kafka has acknowledged, by stream. A stream that falls to zero has lost its publishers.",
			units.EventsPerSecond, "", []query{
				{`sum by (stream) (rate(tidemill_gateway_events_total{$s,outcome="stored"}[$__rate_interval]))`, "{{stream}}"},
			}},
		{"Refused at the gateway", "Events that were refused or failed, and requests refused before they were read, by reason. The alert fires above 5 %.",
			units.EventsPerSecond, "publishing-refused.md", []query{
				{`sum by (outcome) (rate(tidemill_gateway_events_total{$s,outcome=~"refused|failed"}[$__rate_interval]))`, "events {{outcome}}"},
				{`sum by (reason) (rate(tidemill_gateway_refused_total{$s}[$__rate_interval]))`, "requests: {{reason}}"},
			}},
		{"Time to publish", "Time of Kafka until all events of a request are acknowledged, and time of the gateway itself. If only Kafka's grows, look at Kafka.",
			units.Seconds, "publishing-refused.md", []query{
				{quantile("0.5", "tidemill_gateway_ack_seconds", "", "$__rate_interval", ""), "Kafka p50"},
				{quantile("0.99", "tidemill_gateway_ack_seconds", "", "$__rate_interval", ""), "Kafka p99"},
				{quantile("0.99", "tidemill_gateway_own_seconds", "", "$__rate_interval", ""), "gateway p99"},
			}},
	}
}

func triggers() []panel {
	return []panel{
		{"Deliveries and failed attempts", "Events delivered by each trigger, and attempts that did not deliver. An event is tried again after a failed attempt.",
			units.EventsPerSecond, "oldest-event.md", []query{
				{`sum by (trigger) (rate(tidemill_trigger_events_total{$s,outcome="delivered"}[$__rate_interval]))`, "{{trigger}} delivered"},
				{`sum by (trigger) (rate(tidemill_trigger_failed_attempts_total{$s}[$__rate_interval]))`, "{{trigger}} failed"},
			}},
		{"Waiting events", "Events that wait for another attempt, by trigger. Pause a trigger whose subscriber is down for long.",
			units.Short, "oldest-event.md", []query{
				{`sum by (trigger) (tidemill_trigger_waiting{$s})`, "{{trigger}}"},
			}},
		{"Oldest waiting event", "How long the oldest waiting event of a trigger has waited.",
			units.Seconds, "oldest-event.md", []query{
				{`max by (trigger) (tidemill_trigger_oldest_waiting_seconds{$s})`, "{{trigger}}"},
			}},
		{"Dead letters", "Events that became dead letters within an hour, by trigger and by scorer. Replay them after the cause is mended.",
			units.Short, "dead-letters.md", []query{
				{`sum by (trigger) (increase(tidemill_trigger_events_total{$s,outcome="dead-lettered"}[1h]))`, "trigger {{trigger}}"},
				{`sum by (scorer) (increase(tidemill_scorer_events_total{$s,outcome="dead-lettered"}[1h]))`, "scorer {{scorer}}"},
			}},
	}
}

func scorers() []panel {
	return []panel{
		{"Scores", "Events scored, by scorer.",
			units.EventsPerSecond, "scorer-stops.md", []query{
				{`sum by (scorer) (rate(tidemill_scorer_events_total{$s,outcome="scored"}[$__rate_interval]))`, "{{scorer}}"},
			}},
		{"Time to a score", "From an event's place on the log until its score was committed, p50 and p99.",
			units.Seconds, "scorer-stops.md", []query{
				{quantile("0.5", "tidemill_scorer_latency_seconds", "", "$__rate_interval", "scorer"), "{{scorer}} p50"},
				{quantile("0.99", "tidemill_scorer_latency_seconds", "", "$__rate_interval", "scorer"), "{{scorer}} p99"},
			}},
		{"Lag", "Events that a group has yet to read: of each scorer, of the triggers, of the watch for drift, and of other readers. Scale a scorer whose lag grows.",
			units.Short, "scorer-stops.md", []query{
				{`max by (group, stream) (tidemill_stream_lag{$s})`, "{{group}} on {{stream}}"},
				{`max by (task, stream) (tidemill_observer_lag{$s,task=~"drift[.].*"})`, "{{task}} on {{stream}}"},
			}},
	}
}

func runsAndModels() []panel {
	return []panel{
		{"Runs waiting and running", "Runs that are due and wait, by recipe, and attempts that run, by pool. Give a pool more slots if its runs wait for long.",
			units.Short, "nothing-starts.md", []query{
				{`max by (recipe) (tidemill_controller_runs_waiting{$s})`, "{{recipe}} waiting"},
				{`max by (pool) (tidemill_controller_attempts_running{$s})`, "pool {{pool}} running"},
			}},
		{"Attempts that ended", "Ends of attempts within an hour, by recipe and outcome.",
			units.Short, "runs-fail.md", []query{
				{`sum by (recipe, outcome) (increase(tidemill_run_attempts_ended_total{$s}[1h]))`, "{{recipe}} {{outcome}}"},
			}},
		{"Models judged", "Versions that were promoted or refused by their gate within an hour, by recipe.",
			units.Short, "models-refused.md", []query{
				{`max by (recipe, verdict) (increase(tidemill_controller_versions_judged_total{$s}[1h]))`, "{{recipe}} {{verdict}}"},
			}},
		{"Time to a fresh model", "From an event to the first score of the version that it led to, p50 and p99 of an hour, by recipe.",
			units.Seconds, "", []query{
				{quantile("0.5", "tidemill_fresh_model_seconds", `,stage="total"`, "1h", "recipe"), "{{recipe}} p50"},
				{quantile("0.99", "tidemill_fresh_model_seconds", `,stage="total"`, "1h", "recipe"), "{{recipe}} p99"},
			}},
		{"Age of the newest champion", "Time since the run began that made the newest champion of a recipe.",
			units.Seconds, "models-stale.md", []query{
				{`time() - max by (recipe) (tidemill_controller_newest_champion_timestamp_seconds{$s})`, "{{recipe}}"},
			}},
	}
}

func health() []panel {
	return []panel{
		{"Kafka", "Batches that were sent again, and events that were given up or are in doubt. All of it is zero while Kafka is well.",
			units.EventsPerSecond, "publishing-refused.md", []query{
				{`sum(rate(tidemill_producer_retries_total{$s}[$__rate_interval]))`, "batches sent again"},
				{`sum by (outcome) (rate(tidemill_producer_events_total{$s,outcome!="stored"}[$__rate_interval]))`, "events {{outcome}}"},
			}},
		{"Kafka and Redis: time of an answer", "Mean time of a request to Kafka, time of a batch in Redis, and age of the figures about streams. The age grows while Kafka does not answer.",
			units.Seconds, "", []query{
				{`sum(rate(tidemill_producer_request_seconds_total{$s}[$__rate_interval])) / sum(rate(tidemill_producer_requests_total{$s}[$__rate_interval]))`, "Kafka mean"},
				{quantile("0.99", "tidemill_dedupe_round_trip_seconds", "", "$__rate_interval", ""), "Redis: repeats p99"},
				{quantile("0.99", "tidemill_ledger_batch_seconds", "", "$__rate_interval", ""), "Redis: ledger p99"},
				{`max(tidemill_stream_age_seconds{$s})`, "age of the streams' figures"},
			}},
		{"Ledger and controllers", "Facts that the ledger has yet to fold, active controllers, and two flags: the ledger has stopped, repeats are not recognised. One controller is active.",
			units.Short, "ledger-stopped.md", []query{
				{`sum(tidemill_clock_active{$s})`, "active controllers"},
				{`max(tidemill_ledger_stopped{$s})`, "ledger stopped"},
				{`max(tidemill_dedupe_unavailable{$s})`, "repeats not recognised"},
				{`max(tidemill_ledger_behind_facts{$s})`, "facts to fold"},
			}},
		{"Memory", "Memory of each process.",
			units.BytesIEC, "", []query{
				{ofProcesses("process_resident_memory_bytes"), "{{pod}} {{instance}}"},
			}},
		{"Goroutines", "Goroutines of each process. Their number is steady under a steady load.",
			units.Short, "", []query{
				{ofProcesses("go_goroutines"), "{{pod}} {{instance}}"},
			}},
	}
}

// quantile is a quantile of a histogram, for each value of a label if there is one.
func quantile(q, histogram, more, over, label string) string {
	by := "le"
	if label != "" {
		by = label + ", le"
	}
	return "histogram_quantile(" + q + ", sum by (" + by + ") (rate(" + histogram + "_bucket{$s" + more + "}[" + over + "])))"
}

// ofProcesses selects a metric of any Go program by the processes that are Tidemill's.
func ofProcesses(metric string) string {
	return metric + "{$s} and on (job, instance) tidemill_build_info{$s}"
}

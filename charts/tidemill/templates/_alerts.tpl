{{/* docs/runbooks has a page for each alert. Every controller counts all facts, so alerts use the maximum, never the sum. */}}
{{- define "tidemill.alerts" -}}
{{- $v := .Values.metrics.prometheusRule -}}
{{- $s := default (printf "namespace=%q" .Release.Namespace) $v.selector -}}
{{- $book := include "tidemill.runbooks" . -}}
- alert: TidemillPublishingRefused
  expr: >-
    (sum(rate(tidemill_gateway_events_total{ {{- $s }},outcome=~"refused|failed"}[5m])) + sum(rate(tidemill_gateway_refused_total{ {{- $s }},reason=~"room|share|connections"}[5m])))
    / (sum(rate(tidemill_gateway_events_total{ {{- $s }}}[5m])) + sum(rate(tidemill_gateway_refused_total{ {{- $s }},reason=~"room|share|connections"}[5m]))) > 0.05
  for: 5m
  labels: {severity: critical}
  annotations:
    summary: 'The gateway refuses {{ "{{ $value | humanizePercentage }}" }} of what is published.'
    runbook_url: {{ $book }}/publishing-refused.md
- alert: TidemillOldestEvent
  expr: >-
    max by (trigger) (tidemill_trigger_oldest_waiting_seconds{ {{- $s }}}) > {{ include "tidemill.seconds" $v.oldestEvent }}
    or max by (group) (min_over_time(tidemill_stream_lag{ {{- $s }},group=~"triggers[.].*"}[5m])) > 0 unless on () count(last_over_time(tidemill_trigger_in_flight{ {{- $s }}}[5m]))
  for: 1m
  labels: {severity: warning}
  annotations:
    summary: 'Events of {{ "{{ $labels.trigger }}{{ $labels.group }}" }} are not delivered: one waits for more than {{ $v.oldestEvent }}, or no dispatcher is there.'
    runbook_url: {{ $book }}/oldest-event.md
- alert: TidemillScorerStops
  expr: >-
    max by (scorer) (label_replace(min_over_time(tidemill_stream_lag{ {{- $s }},group=~"scorer[.].*"}[5m]), "scorer", "$1", "group", "scorer[.](.*)")) > 0
    unless on (scorer) sum by (scorer) (increase(tidemill_scorer_events_total{ {{- $s }}}[5m])) > 0
  for: 5m
  labels: {severity: critical}
  annotations:
    summary: '{{ "{{ $value | humanize }}" }} events wait for the scorer {{ "{{ $labels.scorer }}" }}, which has finished none for ten minutes.'
    runbook_url: {{ $book }}/scorer-stops.md
- alert: TidemillObserverBehind
  expr: >-
    max by (task) (tidemill_observer_lag_seconds{ {{- $s }}}) > {{ include "tidemill.seconds" $v.observerBehind }}
    or label_replace(max by (group) (min_over_time(tidemill_stream_lag{ {{- $s }},group=~"outcomes[.].*|measured"}[5m])) > 0 unless on () count(tidemill_observer_lag_seconds{ {{- $s }}}), "task", "$1", "group", "(.*)")
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: 'Outcomes, live figures or drift are out of date: {{ "{{ $labels.task }}" }} is behind by more than {{ $v.observerBehind }}, or no observer is there.'
    runbook_url: {{ $book }}/observer-behind.md
- alert: TidemillDeadLetters
  expr: >-
    sum by (trigger) (increase(tidemill_trigger_events_total{ {{- $s }},outcome="dead-lettered"}[15m])) > 0
    or sum by (scorer) (increase(tidemill_scorer_events_total{ {{- $s }},outcome="dead-lettered"}[15m])) > 0
  labels: {severity: warning}
  annotations:
    summary: '{{ "{{ $value | humanize }}" }} events became dead letters within a quarter of an hour ({{ "{{ $labels.trigger }}{{ $labels.scorer }}" }}).'
    runbook_url: {{ $book }}/dead-letters.md
- alert: TidemillNothingStarts
  expr: >-
    max by (recipe) (last_over_time(tidemill_controller_runs_waiting{ {{- $s }}}[5m])) > 0
    unless on () max(last_over_time(tidemill_controller_attempts_running{ {{- $s }}}[5m])) > 0
  for: {{ $v.waiting }}
  labels: {severity: critical}
  annotations:
    summary: 'Runs of {{ "{{ $labels.recipe }}" }} have waited for {{ $v.waiting }}, and nothing has started.'
    runbook_url: {{ $book }}/nothing-starts.md
- alert: TidemillLedgerStopped
  expr: max(tidemill_ledger_stopped{ {{- $s }}}) > 0
  for: 1m
  labels: {severity: critical}
  annotations:
    summary: 'The ledger decides nothing until a person has acted.'
    runbook_url: {{ $book }}/ledger-stopped.md
- alert: TidemillRunsFail
  expr: >-
    sum by (recipe) (increase(tidemill_run_attempts_ended_total{ {{- $s }},outcome=~"failed|lost"}[1h]))
    / sum by (recipe) (increase(tidemill_run_attempts_ended_total{ {{- $s }}}[1h])) > {{ $v.failureRatio }}
    and sum by (recipe) (increase(tidemill_run_attempts_ended_total{ {{- $s }}}[1h])) > 3
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: '{{ "{{ $value | humanizePercentage }}" }} of the attempts of {{ "{{ $labels.recipe }}" }} failed within an hour.'
    runbook_url: {{ $book }}/runs-fail.md
- alert: TidemillModelsRefused
  expr: >-
    max by (recipe) (sum by (recipe, pod) (increase(tidemill_controller_versions_judged_total{ {{- $s }},verdict="refused"}[6h]))
    / sum by (recipe, pod) (increase(tidemill_controller_versions_judged_total{ {{- $s }}}[6h])) > {{ $v.refusalRatio }}
    and sum by (recipe, pod) (increase(tidemill_controller_versions_judged_total{ {{- $s }}}[6h])) > 3)
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: '{{ "{{ $value | humanizePercentage }}" }} of the versions of {{ "{{ $labels.recipe }}" }} were refused by their gate within six hours.'
    runbook_url: {{ $book }}/models-refused.md
- alert: TidemillModelsStale
  expr: >-
    time() - max by (recipe) (tidemill_controller_newest_champion_timestamp_seconds{ {{- $s }}}) > {{ include "tidemill.seconds" $v.staleAfter }}
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: 'The newest champion of {{ "{{ $labels.recipe }}" }} is {{ "{{ $value | humanizeDuration }}" }} old.'
    runbook_url: {{ $book }}/models-stale.md
- alert: TidemillNoActiveController
  expr: >-
    sum(tidemill_clock_active{ {{- $s }}}) < 1 or absent(tidemill_clock_active{ {{- $s }}})
  for: 2m
  labels: {severity: critical}
  annotations:
    summary: 'No controller is active; nothing ticks, and nothing that is lost is noticed.'
    runbook_url: {{ $book }}/no-active-controller.md
{{- end -}}

{{/* The address of the pages about alerts. */}}
{{- define "tidemill.runbooks" -}}
{{- default "docs/runbooks" .Values.metrics.prometheusRule.runbooks | trimSuffix "/" -}}
{{- end -}}

{{/* A duration such as 15m in seconds. */}}
{{- define "tidemill.seconds" -}}
{{- $n := regexFind "^[0-9]+" . | int64 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- mul $n (index (dict "s" 1 "m" 60 "h" 3600 "d" 86400 "w" 604800) $unit) -}}
{{- end -}}

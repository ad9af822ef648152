{{- define "tidemill.tight" -}}
resources:
  requests: {cpu: 10m, memory: 32Mi}
  limits: {memory: 128Mi}
securityContext:
  runAsNonRoot: true
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* The stream of events of the type helm-test in a config. */}}
{{- define "tidemill.homeOfTest" -}}
{{- $home := "events" -}}
{{- range $name, $stream := default dict .streams -}}
{{- if has "helm-test" (default list ($stream | default dict).types) -}}{{- $home = $name -}}{{- end -}}
{{- end -}}
{{- $home -}}
{{- end -}}

{{/*
The Secrets and claims that no recipe may name, as an argument of the processes: names that begin with the install's own name,
helm's Secrets (which hold the Secrets that we have made), the tokens of attempts, all that the values give to our pods, and the operator's own list.
*/}}
{{- define "tidemill.withheld" -}}
{{- $v := .Values -}}
{{- $own := list (include "tidemill.fullname" .) (default (include "tidemill.fullname" .) $v.serviceAccounts.prefix) -}}
{{- $all := list "secret/sh.helm.release.v1.*" "secret/tidemill-attempt-*" -}}
{{- range $own -}}{{- $all = append $all (printf "secret/%s-*" .) -}}{{- $all = append $all (printf "claim/%s-*" .) -}}{{- end -}}
{{- range list $v.kafka.tls.secret $v.kafka.sasl.secret $v.redis.tls.secret $v.redis.secret $v.store.secret $v.access.secret $v.runSecret.secret $v.gateway.tls.secret $v.gateway.ingress.tlsSecret $v.metrics.podMonitor.tokenSecret.name $v.metrics.podMonitor.ca.name $v.test.tokenSecret.name -}}
{{- with . -}}{{- $all = append $all (printf "secret/%s" .) -}}{{- end -}}
{{- end -}}
{{- range $v.image.pullSecrets -}}{{- $all = append $all (printf "secret/%s" .) -}}{{- end -}}
{{- $pods := list $v.store.env $v.pods $v.gateway.pod $v.dispatcher.pod $v.controller.pod $v.scorers.pod $v.observer.pod $v.functions.pod -}}
{{- range splitList "\n" (include "tidemill.namedIn" $pods) -}}
{{- with trim . -}}{{- $all = append $all . -}}{{- end -}}
{{- end -}}
{{- concat $all $v.withhold | uniq | sortAlpha | join "," -}}
{{- end -}}

{{/* The Secrets and claims that a part of a pod names, one per line. Kubernetes has only these few keys for such names. */}}
{{- define "tidemill.namedIn" -}}
{{- if kindIs "slice" . -}}
{{- range . }}{{ include "tidemill.namedIn" . }}{{ end -}}
{{- else if kindIs "map" . -}}
{{- range $key, $value := . -}}
{{- if and (eq $key "secretName") (kindIs "string" $value) }}{{ printf "secret/%s\n" $value }}
{{- else if and (eq $key "claimName") (kindIs "string" $value) }}{{ printf "claim/%s\n" $value }}
{{- else if and (has $key (list "secret" "secretRef" "secretKeyRef" "nodePublishSecretRef" "secretReference")) (kindIs "map" $value) (hasKey (default dict $value) "name") }}{{ printf "secret/%s\n" $value.name }}
{{- else }}{{ include "tidemill.namedIn" $value }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* An error for each withheld name in a recipe, one per line. The processes check again, also configs from the log. */}}
{{- define "tidemill.namedByRecipes" -}}
{{- $withheld := splitList "," (include "tidemill.withheld" .) -}}
{{- range $recipe, $said := default dict (include "tidemill.config" . | fromYaml).recipes -}}
{{- $run := default dict (default dict $said).run -}}
{{- $names := list -}}
{{- range $ref := default dict $run.secrets -}}{{- $names = append $names (printf "secret/%s" (splitList "/" (toString $ref) | first)) -}}{{- end -}}
{{- range default list $run.volumes -}}
{{- with .secret -}}{{- $names = append $names (printf "secret/%s" .) -}}{{- end -}}
{{- with .claim -}}{{- $names = append $names (printf "claim/%s" .) -}}{{- end -}}
{{- end -}}
{{- range $name := $names -}}
{{- range $one := $withheld -}}
{{- if or (eq $one $name) (and (hasSuffix "*" $one) (hasPrefix (trimSuffix "*" $one) $name)) }}{{ printf "the recipe %s names %s, which is the install's own (%s), and no run is given it: copy what the run needs into one of its own\n" $recipe $name $one }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

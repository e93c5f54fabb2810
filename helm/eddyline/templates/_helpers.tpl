{{/* At most `max` characters of a name. One that is longer ends with 8 hex digits of its hash, so that two which begin alike stay two. */}}
{{- define "eddyline.shortened" -}}
{{- if le (len .name) (int .max) -}}
{{- .name | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.name | trunc (sub .max 9 | int) | trimSuffix "-") (.name | sha256sum | trunc 8) -}}
{{- end -}}
{{- end -}}

{{/* Cut off without a hash, as the first charts did: kept where this release has a store, or a claim of one, under that name. */}}
{{- define "eddyline.keptName" -}}
{{- $old := .name | trunc 40 | trimSuffix "-" -}}
{{- $found := lookup "apps/v1" "StatefulSet" .root.Release.Namespace (printf "%s-store" $old) -}}
{{- if not $found -}}
{{- $found = lookup "v1" "PersistentVolumeClaim" .root.Release.Namespace (printf "data-%s-store-0" $old) -}}
{{- end -}}
{{- if $found -}}
{{- $labels := default dict $found.metadata.labels -}}
{{- if or (eq (include "eddyline.isOurs" (dict "root" .root "labels" $labels)) "true") (not (hasKey $labels "app.kubernetes.io/instance")) -}}
{{- $old -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether an object of the cluster with these labels is of this release. */}}
{{- define "eddyline.isOurs" -}}
{{- and (eq (get .labels "app.kubernetes.io/instance") .root.Release.Name) (eq (get .labels "app.kubernetes.io/name") (include "eddyline.name" .root)) -}}
{{- end -}}

{{- define "eddyline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* As it was asked for, of any length. */}}
{{- define "eddyline.askedName" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- end -}}

{{- define "eddyline.fullname" -}}
{{- $name := include "eddyline.askedName" . -}}
{{- $kept := "" -}}
{{- if gt (len $name) 40 -}}
{{- $kept = include "eddyline.keptName" (dict "root" . "name" $name) -}}
{{- end -}}
{{- default (include "eddyline.shortened" (dict "name" $name "max" 40)) $kept -}}
{{- end -}}

{{/* Of a job of Spark's, `.name`. Kubernetes adds 11 characters, and 63 is its limit. A name that was cut off without a hash is kept too,
unless it would be that of two jobs. */}}
{{- define "eddyline.jobName" -}}
{{- $full := include "eddyline.fullname" .root -}}
{{- $name := printf "%s-spark-%s" $full .name -}}
{{- $kept := "" -}}
{{- if gt (len $name) 52 -}}
{{- $old := $name | trunc 52 | trimSuffix "-" -}}
{{- $alike := 0 -}}
{{- range .root.Values.spark.jobs -}}
{{- if eq $old (printf "%s-spark-%s" $full .name | trunc 52 | trimSuffix "-") -}}{{- $alike = add $alike 1 -}}{{- end -}}
{{- end -}}
{{- with lookup "batch/v1" "CronJob" .root.Release.Namespace $old -}}
{{- if and (eq (int $alike) 1) (eq (include "eddyline.isOurs" (dict "root" $.root "labels" (default dict .metadata.labels))) "true") -}}
{{- $kept = $old -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- default (include "eddyline.shortened" (dict "name" $name "max" 52)) $kept -}}
{{- end -}}

{{/* What selects a role's pods. Immutable in every object that has it: nothing here may come from a version. */}}
{{- define "eddyline.selector" -}}
app.kubernetes.io/name: {{ include "eddyline.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{/* Of pods: a new chart or version is no reason to restart what did not change. */}}
{{- define "eddyline.podLabels" -}}
{{ include "eddyline.selector" . }}
app.kubernetes.io/part-of: eddyline
{{- end -}}

{{- define "eddyline.labels" -}}
{{ include "eddyline.selector" . }}
app.kubernetes.io/part-of: eddyline
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ default .root.Chart.AppVersion .root.Values.image.tag | replace "+" "_" | trunc 63 | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{- define "eddyline.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}{{ default (include "eddyline.fullname" .) .Values.serviceAccount.name }}{{- else -}}{{ default "default" .Values.serviceAccount.name }}{{- end -}}
{{- end -}}

{{- define "eddyline.image" -}}
{{- $values := index .root.Values .role -}}
{{- $tag := default .root.Chart.AppVersion .root.Values.image.tag -}}
{{- if .root.Values.image.registry -}}{{ .root.Values.image.registry }}/{{- end -}}{{ $values.image }}:{{ $tag }}
{{- end -}}

{{- define "eddyline.host" -}}
{{ include "eddyline.fullname" .root }}-{{ .role }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end -}}

{{/* The shards in order: a topic's shard is found by it. */}}
{{- define "eddyline.storeAddresses" -}}
{{- $root := . -}}
{{- $addresses := list -}}
{{- range $shard := until (int .Values.store.shards) -}}
{{- $addresses = append $addresses (printf "%s-store-%d.%s:7701" (include "eddyline.fullname" $root) $shard (include "eddyline.host" (dict "root" $root "role" "store"))) -}}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}

{{/* What clients are told to call, for NOTES: what is advertised, else the names that the cluster knows. */}}
{{- define "eddyline.told" -}}
{{- with (index .root.Values .role).advertised -}}
{{- join "," . -}}
{{- else -}}
{{- if eq .role "store" -}}{{ include "eddyline.storeAddresses" .root }}{{- else -}}{{ include "eddyline.address" . }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "eddyline.address" -}}
{{- printf "%s:%d" (include "eddyline.host" .) (int .port) -}}
{{- end -}}

{{/* A number of values.yaml, which Helm reads as a float, as it was written. */}}
{{- define "eddyline.plain" -}}
{{- if kindIs "float64" . -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* Bytes of a quantity: a number, or as Kubernetes writes one. */}}
{{- define "eddyline.bytes" -}}
{{- $text := toString .value -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- if or (not $number) (not (hasKey $units $unit)) -}}
{{- fail (printf "%s is %s, not a quantity as 4Gi or 512Mi" .name $text) -}}
{{- end -}}
{{- mulf (float64 $number) (get $units $unit) | int64 -}}
{{- end -}}

{{/* A setting as it was written, else what its role takes without it. */}}
{{- define "eddyline.setting" -}}
{{- $settings := (index .root.Values .role).settings -}}
{{- if hasKey $settings .name -}}{{ include "eddyline.plain" (get $settings .name) }}{{- else -}}{{ .default }}{{- end -}}
{{- end -}}

{{/* The sources file. */}}
{{- define "eddyline.sources" -}}
{{- if kindIs "slice" .Values.ingest.sources -}}
{{- with .Values.ingest.sources -}}{{ toToml (dict "source" .) }}{{- end -}}
{{- else -}}
{{- .Values.ingest.sources -}}
{{- end -}}
{{- end -}}

{{- define "eddyline.env" -}}
{{- $root := .root -}}
- {name: EDDYLINE_COMMON_CLUSTER_ID, value: {{ $root.Values.clusterId | quote }}}
- {name: EDDYLINE_COMMON_STORE_ADDRESSES, value: {{ include "eddyline.storeAddresses" $root | quote }}}
- {name: EDDYLINE_COMMON_INGEST_ADDRESSES, value: {{ include "eddyline.address" (dict "root" $root "role" "ingest" "port" 7702) | quote }}}
- {name: EDDYLINE_COMMON_DELIVERY_ADDRESSES, value: {{ include "eddyline.address" (dict "root" $root "role" "delivery" "port" 7703) | quote }}}
{{- range $role := list "store" "ingest" "delivery" }}
{{- with (index $root.Values $role).advertised }}
- {name: EDDYLINE_COMMON_{{ upper $role }}_ADVERTISED_ADDRESSES, value: {{ join "," . | quote }}}
{{- end }}
{{- end }}
- {name: EDDYLINE_COMMON_LOG_LEVEL, value: {{ $root.Values.log.level | quote }}}
- {name: EDDYLINE_COMMON_LOG_FORMAT, value: {{ $root.Values.log.format | quote }}}
- {name: EDDYLINE_COMMON_METRICS_KEY_FILE, value: /etc/eddyline/access/metrics.key}
- {name: EDDYLINE_COMMON_KEYS_FILE, value: /etc/eddyline/access/keys.toml}
- {name: EDDYLINE_COMMON_KEY_FILE, value: /etc/eddyline/access/role.key}
{{- if $root.Values.access.tls.secret }}
- {name: EDDYLINE_COMMON_TLS_CERT, value: /etc/eddyline/tls/tls.crt}
- {name: EDDYLINE_COMMON_TLS_KEY, value: /etc/eddyline/tls/tls.key}
- {name: EDDYLINE_COMMON_TLS_CA, value: {{ include "eddyline.authorities" $root }}}
{{- if $root.Values.access.tls.mutual }}
- {name: EDDYLINE_COMMON_TLS_CLIENT_CA, value: {{ include "eddyline.authorities" $root }}}
{{- end }}
{{- end }}
{{- with $root.Values.metrics.otlpUrl }}
- {name: EDDYLINE_COMMON_OTLP_URL, value: {{ . | quote }}}
{{- end }}
{{- with $root.Values.metrics.traceRatio }}
- {name: EDDYLINE_COMMON_TRACE_RATIO, value: {{ . | quote }}}
{{- end }}
{{- range $name, $value := $root.Values.common.settings }}
- {name: EDDYLINE_COMMON_{{ $name }}, value: {{ include "eddyline.plain" $value | quote }}}
{{- end }}
{{- end -}}

{{- define "eddyline.roleEnv" -}}
{{- $upper := upper .role -}}
{{- $values := index .root.Values .role -}}
- {name: EDDYLINE_{{ $upper }}_LISTEN, value: "0.0.0.0:{{ .port }}"}
- {name: EDDYLINE_{{ $upper }}_METRICS_LISTEN, value: "0.0.0.0:{{ .metricsPort }}"}
{{- range $name, $value := $values.settings }}
- {name: EDDYLINE_{{ $upper }}_{{ $name }}, value: {{ include "eddyline.plain" $value | quote }}}
{{- end }}
{{- with $values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "eddyline.authorities" -}}
{{- if .Values.access.tls.bundle -}}/etc/eddyline/authorities/ca.crt{{- else -}}/etc/eddyline/tls/ca.crt{{- end -}}
{{- end -}}

{{- define "eddyline.accessMounts" -}}
- {name: access, mountPath: /etc/eddyline/access, readOnly: true}
{{- if .Values.access.tls.secret }}
- {name: tls, mountPath: /etc/eddyline/tls, readOnly: true}
{{- if .Values.access.tls.bundle }}
- {name: authorities, mountPath: /etc/eddyline/authorities, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of the Secret only what `keys` names: a job has no business with the roles' key. */}}
{{- define "eddyline.accessVolumes" -}}
- name: access
  secret:
    secretName: {{ .root.Values.access.secret }}
    defaultMode: 0440
    items:
      {{- range .keys }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- with .root.Values.access.tls.secret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- with $.root.Values.access.tls.bundle }}
- name: authorities
  configMap: {name: {{ . }}, items: [{key: ca.crt, path: ca.crt}]}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of a client: what it reads of the environment. Any store tells where all are; one may be away. */}}
{{- define "eddyline.clientEnv" -}}
- {name: EDDYLINE_ADDRESS, value: {{ include "eddyline.storeAddresses" .root | quote }}}
- {name: EDDYLINE_KEY_FILE, value: {{ printf "/etc/eddyline/access/%s" .key | quote }}}
{{- if .root.Values.access.tls.secret }}
- {name: EDDYLINE_TLS_CA, value: {{ include "eddyline.authorities" .root }}}
{{- if .root.Values.access.tls.mutual }}
- {name: EDDYLINE_TLS_CERT, value: /etc/eddyline/tls/tls.crt}
- {name: EDDYLINE_TLS_KEY, value: /etc/eddyline/tls/tls.key}
{{- end }}
{{- end }}
{{- end -}}

{{/* A pod in which keys are made: asleep, with nothing but the store's image. */}}
{{- define "eddyline.keysPod" -}}
{{- $container := dict "name" "keys" "image" (include "eddyline.image" (dict "root" . "role" "store")) "command" (list "sleep" "600") "securityContext" (include "eddyline.containerSecurity" . | fromYaml) -}}
{{- $spec := dict "restartPolicy" "Never" "automountServiceAccountToken" false "securityContext" (include "eddyline.podSecurity" . | fromYaml) "containers" (list $container) -}}
{{- with .Values.image.pullSecrets -}}
{{- $_ := set $spec "imagePullSecrets" . -}}
{{- end -}}
{{- dict "apiVersion" "v1" "kind" "Pod" "metadata" (dict "name" (printf "%s-keys" (include "eddyline.fullname" .))) "spec" $spec | toJson -}}
{{- end -}}

{{- define "eddyline.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "eddyline.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The kubelet verifies no certificate, and is asked for none. */}}
{{- define "eddyline.probe" -}}
{path: {{ .path }}, port: metrics{{ if .root.Values.access.tls.secret }}, scheme: HTTPS{{ end }}}
{{- end -}}

{{/* Liveness asks only whether the process answers: never for recovery, NATS or another role. */}}
{{- define "eddyline.probes" -}}
livenessProbe:
  httpGet: {{ include "eddyline.probe" (dict "root" . "path" "/live") }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {{ include "eddyline.probe" (dict "root" . "path" "/ready") }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{- define "eddyline.drain" -}}
lifecycle:
  preStop:
    exec: {command: [sleep, {{ .drainSeconds | quote }}]}
{{- end -}}

{{/* Pods of a role on different nodes where there are several; values of affinity take its place. */}}
{{- define "eddyline.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "eddyline.selector" . | nindent 8 }}
{{- end -}}

{{- define "eddyline.placing" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* What the StatefulSet that is installed was made with: claim templates and the number of shards do not change. */}}
{{- define "eddyline.installedStore" -}}
{{- $found := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-store" (include "eddyline.fullname" .)) -}}
{{- if $found }}
size: {{ (index $found.spec.volumeClaimTemplates 0).spec.resources.requests.storage | quote }}
shards: {{ $found.spec.replicas }}
claim: {{ toJson (index $found.spec.volumeClaimTemplates 0).spec }}
{{- end }}
{{- end -}}

{{/* The groups of alerts/eddyline.yaml, of this release's series alone: `absent` could not tell else that one of several is gone. */}}
{{- define "eddyline.ruleGroups" -}}
{{- $rules := .Values.metrics.rules -}}
{{- $matchers := default (printf "namespace=%q" .Release.Namespace) $rules.matchers -}}
{{- $groups := (.Files.Get "alerts/eddyline.yaml" | fromYaml).groups -}}
{{- range $group := $groups -}}
{{- range $rule := $group.rules -}}
{{- $plain := regexReplaceAll "\\b(eddyline_\\w+)" $rule.expr (printf "${1}{%s}" $matchers) -}}
{{- $_ := set $rule "expr" (replace "}{" "," $plain) -}}
{{- with $rules.runbookUrl -}}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s/%s" (trimSuffix "/" .) $rule.annotations.runbook) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $groups -}}
{{- end -}}

{{/* Refuse a memory limit below `needed` bytes. Without a limit there is nothing to judge. */}}
{{- define "eddyline.checkMemory" -}}
{{- with (index .root.Values .role).resources.limits -}}
{{- if hasKey . "memory" -}}
{{- $name := printf "%s.resources.limits.memory" $.role -}}
{{- $limit := include "eddyline.bytes" (dict "name" $name "value" .memory) | int64 -}}
{{- if lt $limit (int64 $.needed) -}}
{{- fail (printf "%s is %v, and %s takes %d MiB: %s. Kubernetes would kill the pod. Set a limit of %dMi or more, or lower what it takes" $name .memory $.role (div (add $.needed 1048575) 1048576) $.words (div (add $.needed 1048575) 1048576)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Limits against what roles plan with. Numbers are the roles' own: tests hold them to their settings and README files. */}}
{{- define "eddyline.checkLimits" -}}
{{- $budget := include "eddyline.bytes" (dict "name" "store.memoryBytes" "value" .Values.store.memoryBytes) | int64 -}}
{{- if lt $budget (int64 268435456) -}}
{{- fail (printf "store.memoryBytes is %v; a store takes 256Mi and more" .Values.store.memoryBytes) -}}
{{- end -}}
{{- include "eddyline.checkMemory" (dict "root" . "role" "store" "needed" (add $budget 402653184) "words" "its budget, store.memoryBytes, and the 384 MiB that it may hold beside it") -}}
{{- $rings := include "eddyline.bytes" (dict "name" "delivery.settings.BUFFER_BYTES" "value" (include "eddyline.setting" (dict "root" . "role" "delivery" "name" "BUFFER_BYTES" "default" 268435456))) | int64 -}}
{{- $watches := include "eddyline.setting" (dict "root" . "role" "delivery" "name" "WATCHES_MAX" "default" 10000) | int64 -}}
{{- $streams := mul (ternary $watches 16000 (gt $watches (int64 0))) 27648 -}}
{{- include "eddyline.checkMemory" (dict "root" . "role" "delivery" "needed" (add $rings $streams 134217728) "words" "BUFFER_BYTES, 27 KiB for each of WATCHES_MAX streams, and 128 MiB for itself") -}}
{{- $floor := include "eddyline.bytes" (dict "name" "store.settings.DISK_FLOOR_BYTES" "value" (include "eddyline.setting" (dict "root" . "role" "store" "name" "DISK_FLOOR_BYTES" "default" 536870912))) | int64 -}}
{{- $file := include "eddyline.bytes" (dict "name" "store.settings.WAL_FILE_BYTES" "value" (include "eddyline.setting" (dict "root" . "role" "store" "name" "WAL_FILE_BYTES" "default" 67108864))) | int64 -}}
{{- $logs := include "eddyline.setting" (dict "root" . "role" "store" "name" "WAL_SHARDS" "default" 1) | int64 -}}
{{- $volume := include "eddyline.bytes" (dict "name" "store.storage.size" "value" .Values.store.storage.size) | int64 -}}
{{- if le $volume (add $floor (mul 2 $file $logs)) -}}
{{- fail (printf "store.storage.size is %s, and DISK_FLOOR_BYTES with two files of WAL_FILE_BYTES for each of WAL_SHARDS takes %d MiB: the store would refuse every append" .Values.store.storage.size (div (add $floor (mul 2 $file $logs)) 1048576)) -}}
{{- end -}}
{{- range $role := list "store" "ingest" "delivery" -}}
{{- $values := index $.Values $role -}}
{{- $grace_ms := include "eddyline.setting" (dict "root" $ "role" $role "name" "STOP_GRACE_MS" "default" 5000) | int64 -}}
{{- $needed := add $values.drainSeconds (div (add $grace_ms 999) 1000) 5 -}}
{{- if lt (int64 $values.terminationGraceSeconds) $needed -}}
{{- fail (printf "%s.terminationGraceSeconds is %d, and drainSeconds, STOP_GRACE_MS and 5 s to end take %d: the pod would be killed while it drains" $role (int64 $values.terminationGraceSeconds) $needed) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The sources file as ingest judges it, but for the names' characters. A list has been judged by the schema. */}}
{{- define "eddyline.checkSources" -}}
{{- $file := include "eddyline.sources" . | fromToml -}}
{{- if hasKey $file "Error" -}}
{{- fail (printf "ingest.sources is not TOML: %s" (get $file "Error")) -}}
{{- end -}}
{{- with keys (omit $file "source") -}}
{{- fail (printf "ingest.sources has the unknown %s; it takes [[source]] tables" (sortAlpha . | join ", ")) -}}
{{- end -}}
{{- $sources := default list $file.source -}}
{{- if not (kindIs "slice" $sources) -}}
{{- fail "ingest.sources: write [[source]], a table a source" -}}
{{- end -}}
{{- $texts := list "name" "topic" "bucket" "stream" "on_expired" "on_recreated" "dead_letter_topic" -}}
{{- $lists := list "key_prefixes" "subjects" -}}
{{- $seen := dict -}}
{{- range $index, $source := $sources -}}
{{- $where := printf "ingest.sources, source %d" (add1 $index) -}}
{{- range $field, $value := $source -}}
{{- if not (has $field (concat $texts $lists)) -}}
{{- fail (printf "%s has the unknown %s; it takes %s" $where $field (concat $texts $lists | join ", ")) -}}
{{- end -}}
{{- if not (kindIs (ternary "slice" "string" (has $field $lists)) $value) -}}
{{- fail (printf "%s: %s is not %s" $where $field (ternary "a list of texts" "a text" (has $field $lists))) -}}
{{- end -}}
{{- if and (has $field (list "on_expired" "on_recreated")) (not (has $value (list "resync" "stop"))) -}}
{{- fail (printf "%s: %s is resync or stop, not %s" $where $field $value) -}}
{{- end -}}
{{- end -}}
{{- if not (and $source.name $source.topic (or $source.bucket $source.stream)) -}}
{{- fail (printf "%s needs name, topic, and bucket or stream" $where) -}}
{{- end -}}
{{- if and $source.bucket $source.stream -}}
{{- fail (printf "%s has bucket and stream; a source copies one of them" $where) -}}
{{- end -}}
{{- if and $source.stream $source.key_prefixes -}}
{{- fail (printf "%s has key_prefixes: only a bucket has keys, name a stream's subjects" $where) -}}
{{- end -}}
{{- if eq $source.topic (default "" $source.dead_letter_topic) -}}
{{- fail (printf "%s: dead_letter_topic is a topic of its own" $where) -}}
{{- end -}}
{{- range $field := list "name" "topic" -}}
{{- $key := printf "%s %s" $field (get $source $field) -}}
{{- if hasKey $seen $key -}}
{{- fail (printf "ingest.sources gives %s to more than one source" $key) -}}
{{- end -}}
{{- $_ := set $seen $key true -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the schema cannot say: values that mean nothing without another. */}}
{{- define "eddyline.check" -}}
{{- if and (hasKey .Values "enabled") (not .Values.enabled) -}}
{{- fail "enabled is false, and the chart was asked for all the same: in the parent's Chart.yaml its dependency needs `condition: <its name>.enabled`" -}}
{{- end -}}
{{- if and .Values.access.tls.mutual (not .Values.access.tls.secret) -}}
{{- fail "access.tls.mutual needs access.tls.secret: without certificates nobody is asked for one" -}}
{{- end -}}
{{- if and .Values.access.tls.bundle (not .Values.access.tls.secret) -}}
{{- fail "access.tls.bundle needs access.tls.secret: without a certificate nothing is encrypted" -}}
{{- end -}}
{{- if and .Values.nats.nkeySecret .Values.nats.credsSecret -}}
{{- fail "nats.nkeySecret and nats.credsSecret are two ways in: set one of them" -}}
{{- end -}}
{{- if and .Values.nats.tls.clientCertificate (not .Values.nats.tls.secret) -}}
{{- fail "nats.tls.clientCertificate needs nats.tls.secret, where the certificate is" -}}
{{- end -}}
{{- $advertised := len .Values.store.advertised -}}
{{- if not (has $advertised (list 0 1 (int .Values.store.shards))) -}}
{{- fail (printf "store.advertised has %d addresses for %d stores: set one for each, in order, or one for all" $advertised (int .Values.store.shards)) -}}
{{- end -}}
{{- range $role := list "ingest" "delivery" -}}
{{- with (index $.Values $role).autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail (printf "%s.autoscaling.minReplicas is more than maxReplicas" $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "eddyline.checkLimits" . -}}
{{- include "eddyline.checkSources" . -}}
{{- end -}}

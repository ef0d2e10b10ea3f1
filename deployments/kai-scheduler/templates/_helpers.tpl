{{- /* The objects of this chart have fixed names, because webhooks, policies and permissions name them: one release per cluster. */ -}}

{{- define "kai.labels" -}}
app.kubernetes.io/part-of: kai-scheduler
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* Image of a component. Takes (dict "root" $ "image" IMAGE), where IMAGE may have a tag. */ -}}
{{- define "kai.image" -}}
{{ .root.Values.global.registry }}/kai:{{ .image.tag | default .root.Values.global.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "kai.pullPolicy" -}}
{{ .image.pullPolicy | default .root.Values.global.imagePullPolicy }}
{{- end }}

{{- /* Not empty if the node-scale adjuster runs. KAI's values files may switch it off apart. */ -}}
{{- define "kai.scalesNodes" -}}
{{- if and .Values.global.clusterAutoscaling (ne (toString .Values.nodescaleadjuster.enabled) "false") }}true{{ end }}
{{- end }}

{{- /* The same as the Image of a Config. */ -}}
{{- define "kai.configImage" -}}
repository: {{ .root.Values.global.registry | quote }}
name: kai
tag: {{ .image.tag | default .root.Values.global.tag | default .root.Chart.AppVersion | quote }}
pullPolicy: {{ include "kai.pullPolicy" . }}
{{- end }}

{{- /* Names of the pull secrets as a JSON list; the values are names or objects with a name. */ -}}
{{- define "kai.pullSecretNames" -}}
{{- $names := list }}
{{- range .Values.global.imagePullSecrets }}
{{- $names = append $names (kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") .) }}
{{- end }}
{{- toJson $names }}
{{- end }}

{{- define "kai.pullSecrets" -}}
{{- range include "kai.pullSecretNames" . | fromJsonArray }}
- name: {{ . }}
{{- end }}
{{- end }}

{{- define "kai.podSecurityContext" -}}
{{- $default := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- toYaml (mergeOverwrite $default (deepCopy .Values.global.podSecurityContext)) }}
{{- end }}

{{- define "kai.securityContext" -}}
{{- $default := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "runAsNonRoot" true "capabilities" (dict "drop" (list "ALL")) }}
{{- toYaml (mergeOverwrite $default (deepCopy .Values.global.securityContext)) }}
{{- end }}

{{- /* Affinity of a Deployment whose pods have the label app. Takes (dict "root" $ "app" NAME). */ -}}
{{- define "kai.affinity" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (dict "app" .app)) }}
{{- $spread := dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term)) }}
{{- if .root.Values.global.requireDefaultPodAntiAffinityTerm }}
{{- $spread = dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term) }}
{{- end }}
{{- toYaml (mergeOverwrite (dict "podAntiAffinity" $spread) (deepCopy .root.Values.global.affinity)) }}
{{- end }}

{{- /* Flags of the scheduler from args and additionalArgs, as a JSON object. `--flag` means `--flag=true`. */ -}}
{{- define "kai.schedulerArgs" -}}
{{- $args := dict }}
{{- range $key, $value := .Values.scheduler.args }}
{{- $_ := set $args $key (toString $value) }}
{{- end }}
{{- range .Values.scheduler.additionalArgs }}
{{- $parts := splitn "=" 2 (trimPrefix "--" .) }}
{{- $_ := set $args $parts._0 (contains "=" . | ternary $parts._1 "true") }}
{{- end }}
{{- toJson $args }}
{{- end }}

{{- /* Whether a flag of KAI's scheduler concerns the log, which a process has once for all its roles. */ -}}
{{- define "kai.isLogFlag" -}}
{{- if or (has . (list "v" "log-json" "log-level" "log" "log-format")) (hasPrefix "zap-" .) }}true{{ end }}
{{- end }}

{{- /* Flags that the Deployments of both modes have. */ -}}
{{- define "kai.processFlags" -}}
- --apply-crds
- --installation=/etc/kai/installation
- --leader-elect
{{- if not .Values.topologyMigration.enabled }}
- --migrate-topologies=false
{{- end }}
{{- if .Values.global.jsonLog }}
- --log-format=json
{{- end }}
{{- with .Values.operator.logLevel }}
- --log={{ . }}
{{- end }}
{{- end }}

{{- /* Paths of the leaves of a value that differ from the default, one per line. Takes (dict "path" P "value" V "default" D). */ -}}
{{- define "kai.differences" -}}
{{- if and (kindIs "map" .value) (kindIs "map" .default) (gt (len .default) 0) }}
{{- $default := .default }}{{ $path := .path }}
{{- range $key, $value := .value }}
{{- include "kai.differences" (dict "path" (printf "%s.%s" $path $key) "value" $value "default" (get $default $key)) }}
{{- end }}
{{- else if ne (toJson .value) (toJson .default) }}
{{- /* A null is absent or empty, depending on the version of Helm. */ -}}
{{- if not (and (kindIs "invalid" .value) (eq (toString .default) "")) }}{{ .path }}{{ "\n" }}{{ end }}
{{- end }}
{{- end }}

{{- /* The mode of GPU sharing: from the mode, or from KAI's older switches, which must not contradict it. */ -}}
{{- define "kai.gpuSharingMode" -}}
{{- $global := .Values.global }}
{{- $mode := $global.gpuSharingMode }}
{{- if $global.nvFractions.set }}
{{- if and $mode (ne $mode "NvFractions") }}
{{- fail (printf "global.nvFractions.set selects the mode NvFractions, but global.gpuSharingMode is %s: remove one of them" $mode) }}
{{- end }}
{{- $mode = "NvFractions" }}
{{- end }}
{{- if kindIs "bool" $global.gpuSharing }}
{{- $mode = $mode | default ($global.gpuSharing | ternary "NonMemoryEnforced" "Disabled") }}
{{- if eq $global.gpuSharing (eq $mode "Disabled") }}
{{- fail (printf "global.gpuSharing=%t contradicts the mode %s (global.gpuSharingMode, global.nvFractions.set): remove global.gpuSharing" $global.gpuSharing $mode) }}
{{- end }}
{{- end }}
{{- $mode | default "NonMemoryEnforced" }}
{{- end }}

{{- /* Warnings about values without effect, one per line. */ -}}
{{- define "kai.warnings" -}}
{{- $root := . }}
{{- $table := .Files.Get "files/no-effect.yaml" | fromYaml }}
{{- range concat (get $table "any") (get $table .Values.mode | default list) }}
{{- $value := $root.Values }}
{{- range splitList "." .key }}
{{- $value = kindIs "map" $value | ternary (get (kindIs "map" $value | ternary $value dict) .) nil }}
{{- end }}
{{- $reason := .reason }}
{{- range include "kai.differences" (dict "path" .key "value" $value "default" .default) | trim | splitList "\n" }}
{{- if . }}
WARNING: {{ . }} has no effect: {{ $reason }}.
{{- end }}
{{- end }}
{{- end }}
{{- end }}

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion of thaw for bash. Made by 'thaw completion bash': change vmm/cli/completion.c.

_thaw_fill() {
	mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}

_thaw_templates() {
	local folder="${THAW_STATE:-/var/lib/thaw}/templates" path
	for path in "$folder"/*/; do
		[[ -d $path && $path != */snap.* ]] || continue
		path=${path%/}
		printf '%s\n' "${path##*/}"
	done
}

_thaw_kind() {
	case $1 in
	sandbox) _thaw_fill "$("${COMP_WORDS[0]}" ps -aq 2>/dev/null)" ;;
	copy)
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		compopt -o nospace 2>/dev/null
		mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -S : -W "$("${COMP_WORDS[0]}" ps -q 2>/dev/null)" -- "$cur")
		;;
	template) _thaw_fill "$(_thaw_templates)" ;;
	snapshot) _thaw_fill "$("${COMP_WORDS[0]}" snapshot ls -q 2>/dev/null)" ;;
	shell) _thaw_fill 'bash zsh fish' ;;
	variable) mapfile -t COMPREPLY < <(compgen -e -- "$cur") ;;
	file) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
	esac
}

_thaw() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} path=${COMP_WORDS[1]} i
	COMPREPLY=()
	# What stands behind "--" is the sandbox's: nothing here knows its files.
	for ((i = 1; i < COMP_CWORD; i++)); do
		[[ ${COMP_WORDS[i]} == -- ]] && return
	done
	if ((COMP_CWORD == 1)); then
		_thaw_fill 'run create start exec cp ps inspect logs attach forward stats top fork snapshot pause resume wait stop kill rm template pool events prune doctor completion version help'
		return
	fi
	case $path in
	snapshot)
		if ((COMP_CWORD == 2)); then
			_thaw_fill "create ls rm help"
			return
		fi
		case ${COMP_WORDS[2]} in
		create | ls | rm) path+=" ${COMP_WORDS[2]}" ;;
		esac
		;;
	template)
		if ((COMP_CWORD == 2)); then
			_thaw_fill "build ls inspect verify flatten record rm export import pack help"
			return
		fi
		case ${COMP_WORDS[2]} in
		build | ls | inspect | verify | flatten | record | rm | export | import | pack) path+=" ${COMP_WORDS[2]}" ;;
		esac
		;;
	pool)
		if ((COMP_CWORD == 2)); then
			_thaw_fill "$(_thaw_templates) set ls rm help"
			return
		fi
		case ${COMP_WORDS[2]} in
		set | ls | rm) path+=" ${COMP_WORDS[2]}" ;;
		esac
		;;
	esac
	case $path:$prev in
	'run:--env' | 'run:-e') _thaw_kind variable ;;
	'run:--workdir' | 'run:-w') ;;
	'run:--user' | 'run:-u') ;;
	'run:--name' | 'run:-n') ;;
	'run:--label' | 'run:-l') ;;
	'run:--size') _thaw_fill 'lite basic standard-1 standard-2 standard-3 standard-4' ;;
	'run:--vcpus') ;;
	'run:--memory' | 'run:-m') ;;
	'run:--scratch') ;;
	'run:--idle-timeout') ;;
	'run:--hard-timeout') ;;
	'run:--pids-limit') ;;
	'run:--nofile') ;;
	'run:--output' | 'run:-o') _thaw_fill 'json' ;;
	'run:--strategy') _thaw_fill 'ws mmap copy uring memfd uffd pack' ;;
	'run:--populate') _thaw_fill 'off read write both' ;;
	'run:--prefault') _thaw_fill 'on off' ;;
	'run:--huge') _thaw_fill 'none thp' ;;
	'run:--threads') ;;
	'run:--fault-window') ;;
	'run:--jail') _thaw_fill 'full no-cgroup' ;;
	'run:--json') _thaw_kind file ;;
	'run:--timeout') ;;
	'run:--hostname') ;;
	'run:--console') _thaw_kind file ;;
	'create:--name' | 'create:-n') ;;
	'create:--label' | 'create:-l') ;;
	'create:--size') _thaw_fill 'lite basic standard-1 standard-2 standard-3 standard-4' ;;
	'create:--vcpus') ;;
	'create:--memory' | 'create:-m') ;;
	'create:--scratch') ;;
	'create:--idle-timeout') ;;
	'create:--hard-timeout') ;;
	'create:--pids-limit') ;;
	'create:--nofile') ;;
	'create:--snapshot') ;;
	'create:--env' | 'create:-e') _thaw_kind variable ;;
	'create:--hostname') ;;
	'create:--output' | 'create:-o') _thaw_fill 'json' ;;
	'start:--output' | 'start:-o') _thaw_fill 'json' ;;
	'exec:--env' | 'exec:-e') _thaw_kind variable ;;
	'exec:--workdir' | 'exec:-w') ;;
	'exec:--user' | 'exec:-u') ;;
	'exec:--output' | 'exec:-o') _thaw_fill 'json' ;;
	'exec:--timeout') ;;
	'cp:--output' | 'cp:-o') _thaw_fill 'json' ;;
	'ps:--filter' | 'ps:-f') _thaw_fill 'label= state=running state=stopped state=paused' ;;
	'ps:--output' | 'ps:-o') _thaw_fill 'json' ;;
	'inspect:--output' | 'inspect:-o') _thaw_fill 'json' ;;
	'logs:--exec') ;;
	'logs:--tail' | 'logs:-n') ;;
	'logs:--since') ;;
	'logs:--output' | 'logs:-o') _thaw_fill 'json' ;;
	'attach:--exec') ;;
	'forward:--bind' | 'forward:-b') ;;
	'forward:--output' | 'forward:-o') _thaw_fill 'json' ;;
	'stats:--interval') ;;
	'stats:--output' | 'stats:-o') _thaw_fill 'json' ;;
	'top:--output' | 'top:-o') _thaw_fill 'json' ;;
	'fork:--count' | 'fork:-n') ;;
	'fork:--name') ;;
	'fork:--label' | 'fork:-l') ;;
	'fork:--strategy') _thaw_fill 'ws mmap copy uring memfd uffd pack' ;;
	'fork:--output' | 'fork:-o') _thaw_fill 'json' ;;
	'snapshot create:--name' | 'snapshot create:-n') ;;
	'snapshot create:--label' | 'snapshot create:-l') ;;
	'snapshot create:--output' | 'snapshot create:-o') _thaw_fill 'json' ;;
	'snapshot ls:--sandbox') _thaw_kind sandbox ;;
	'snapshot ls:--output' | 'snapshot ls:-o') _thaw_fill 'json' ;;
	'pause:--output' | 'pause:-o') _thaw_fill 'json' ;;
	'resume:--strategy') _thaw_fill 'ws mmap copy uring memfd uffd pack' ;;
	'resume:--output' | 'resume:-o') _thaw_fill 'json' ;;
	'wait:--timeout') ;;
	'wait:--output' | 'wait:-o') _thaw_fill 'json' ;;
	'stop:--time' | 'stop:-t') ;;
	'stop:--output' | 'stop:-o') _thaw_fill 'json' ;;
	'kill:--signal' | 'kill:-s') _thaw_fill 'TERM INT HUP KILL QUIT USR1 USR2' ;;
	'kill:--output' | 'kill:-o') _thaw_fill 'json' ;;
	'rm:--output' | 'rm:-o') _thaw_fill 'json' ;;
	'template build:--recipe') _thaw_kind file ;;
	'template build:--vcpus') ;;
	'template build:--memory') ;;
	'template build:--from') _thaw_kind template ;;
	'template build:--strategy') _thaw_fill 'ws mmap copy uring memfd uffd pack' ;;
	'template build:--warm') ;;
	'template build:--recorder') _thaw_fill 'pagemap bpf' ;;
	'template build:--hot-runs') ;;
	'template build:--hot-rule') _thaw_fill 'half union intersection' ;;
	'template build:--timeout') ;;
	'template ls:--output' | 'template ls:-o') _thaw_fill 'json' ;;
	'template inspect:--output' | 'template inspect:-o') _thaw_fill 'json' ;;
	'template record:--recorder') _thaw_fill 'pagemap bpf' ;;
	'template record:--hot-runs') ;;
	'template record:--hot-rule') _thaw_fill 'half union intersection' ;;
	'template record:--recipe') _thaw_kind file ;;
	'template record:--warm') ;;
	'template record:--timeout') ;;
	'template export:--threads') ;;
	'template import:--threads') ;;
	'template pack:--threads') ;;
	'pool set:--size') ;;
	'pool set:--output' | 'pool set:-o') _thaw_fill 'json' ;;
	'pool ls:--output' | 'pool ls:-o') _thaw_fill 'json' ;;
	'pool:--size') ;;
	'pool:--idle-timeout') ;;
	'pool:--jail') _thaw_fill 'full no-cgroup' ;;
	'pool:--output' | 'pool:-o') _thaw_fill 'json' ;;
	'events:--since') ;;
	'events:--sandbox') _thaw_kind sandbox ;;
	'events:--output' | 'events:-o') _thaw_fill 'json' ;;
	'prune:--output' | 'prune:-o') _thaw_fill 'json' ;;
	'doctor:--output' | 'doctor:-o') _thaw_fill 'json' ;;
	'version:--output' | 'version:-o') _thaw_fill 'json' ;;
	*) _thaw_arguments ;;
	esac
}

# Of _thaw(): reads its variables.
_thaw_arguments() {
	case $path in
	'run')
		if [[ $cur == -* ]]; then
			_thaw_fill '--detach --env --workdir --user --interactive --tty --rm --local --name --label --size --vcpus --memory --scratch --idle-timeout --hard-timeout --keep-alive --internet --pids-limit --nofile --output --strategy --populate --prefault --huge --threads --fault-window --jail --no-pool --json --timeout --hostname --console --help --'
		else
			_thaw_kind template
		fi
		;;
	'create')
		if [[ $cur == -* ]]; then
			_thaw_fill '--name --label --size --vcpus --memory --scratch --idle-timeout --hard-timeout --keep-alive --internet --pids-limit --nofile --snapshot --env --hostname --start --reuse --output --help --'
		else
			_thaw_kind template
		fi
		;;
	'start')
		if [[ $cur == -* ]]; then
			_thaw_fill '--output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'exec')
		if [[ $cur == -* ]]; then
			_thaw_fill '--detach --tty --env --workdir --user --interactive --output --timeout --help --'
		else
			_thaw_kind sandbox
		fi
		;;
	'cp')
		if [[ $cur == -* ]]; then
			_thaw_fill '--archive --follow-link --output --help'
		else
			_thaw_kind copy
		fi
		;;
	'ps')
		if [[ $cur == -* ]]; then
			_thaw_fill '--all --quiet --filter --output --help'
		fi
		;;
	'inspect')
		if [[ $cur == -* ]]; then
			_thaw_fill '--output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'logs')
		if [[ $cur == -* ]]; then
			_thaw_fill '--exec --follow --tail --since --timestamps --output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'attach')
		if [[ $cur == -* ]]; then
			_thaw_fill '--exec --no-stdin --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'forward')
		if [[ $cur == -* ]]; then
			_thaw_fill '--bind --output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'stats')
		if [[ $cur == -* ]]; then
			_thaw_fill '--no-stream --interval --output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'top')
		if [[ $cur == -* ]]; then
			_thaw_fill '--output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'fork')
		if [[ $cur == -* ]]; then
			_thaw_fill '--count --name --label --strategy --output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'snapshot create')
		if [[ $cur == -* ]]; then
			_thaw_fill '--name --label --output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'snapshot ls')
		if [[ $cur == -* ]]; then
			_thaw_fill '--sandbox --quiet --output --help'
		fi
		;;
	'snapshot rm')
		if [[ $cur == -* ]]; then
			_thaw_fill '--help'
		else
			_thaw_kind snapshot
		fi
		;;
	'pause')
		if [[ $cur == -* ]]; then
			_thaw_fill '--output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'resume')
		if [[ $cur == -* ]]; then
			_thaw_fill '--strategy --output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'wait')
		if [[ $cur == -* ]]; then
			_thaw_fill '--timeout --output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'stop')
		if [[ $cur == -* ]]; then
			_thaw_fill '--time --output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'kill')
		if [[ $cur == -* ]]; then
			_thaw_fill '--signal --output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'rm')
		if [[ $cur == -* ]]; then
			_thaw_fill '--force --output --help'
		else
			_thaw_kind sandbox
		fi
		;;
	'template build')
		if [[ $cur == -* ]]; then
			_thaw_fill '--recipe --vcpus --memory --from --whole --strategy --warm --recorder --hot-runs --hot-rule --replace --serial --timeout --help'
		fi
		;;
	'template ls')
		if [[ $cur == -* ]]; then
			_thaw_fill '--output --json --help'
		fi
		;;
	'template inspect')
		if [[ $cur == -* ]]; then
			_thaw_fill '--output --json --help'
		fi
		;;
	'template verify')
		if [[ $cur == -* ]]; then
			_thaw_fill '--help'
		fi
		;;
	'template flatten')
		if [[ $cur == -* ]]; then
			_thaw_fill '--help'
		fi
		;;
	'template record')
		if [[ $cur == -* ]]; then
			_thaw_fill '--recorder --hot-runs --hot-rule --recipe --warm --timeout --help'
		fi
		;;
	'template rm')
		if [[ $cur == -* ]]; then
			_thaw_fill '--help'
		fi
		;;
	'template export')
		if [[ $cur == -* ]]; then
			_thaw_fill '--no-root --replace --threads --help'
		fi
		;;
	'template import')
		if [[ $cur == -* ]]; then
			_thaw_fill '--replace --threads --help'
		fi
		;;
	'template pack')
		if [[ $cur == -* ]]; then
			_thaw_fill '--threads --help'
		fi
		;;
	'pool set')
		if [[ $cur == -* ]]; then
			_thaw_fill '--size --populate --output --help'
		else
			_thaw_kind template
		fi
		;;
	'pool ls')
		if [[ $cur == -* ]]; then
			_thaw_fill '--output --help'
		fi
		;;
	'pool rm')
		if [[ $cur == -* ]]; then
			_thaw_fill '--help'
		else
			_thaw_kind template
		fi
		;;
	'pool')
		if [[ $cur == -* ]]; then
			_thaw_fill '--size --populate --idle-timeout --jail --status --output --json --help'
		fi
		;;
	'events')
		if [[ $cur == -* ]]; then
			_thaw_fill '--follow --since --sandbox --output --help'
		fi
		;;
	'prune')
		if [[ $cur == -* ]]; then
			_thaw_fill '--stopped --snapshots --logs --force --output --help'
		fi
		;;
	'doctor')
		if [[ $cur == -* ]]; then
			_thaw_fill '--output --json --help'
		fi
		;;
	'completion')
		if [[ $cur == -* ]]; then
			_thaw_fill '--help'
		else
			_thaw_kind shell
		fi
		;;
	'version')
		if [[ $cur == -* ]]; then
			_thaw_fill '--output --help'
		fi
		;;
	esac
}

complete -F _thaw thaw

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Bash completion for thaw: commands, options, template names.

_thaw_templates() {
	local folder="${THAW_STATE:-/var/lib/thaw}/templates" path
	for path in "$folder"/*/; do
		[[ -d $path && $path != */snap.* ]] || continue
		path=${path%/}
		printf '%s\n' "${path##*/}"
	done
}

_thaw_sandboxes() {
	local folder="${THAW_STATE:-/var/lib/thaw}/run" path
	for path in "$folder"/*/; do
		[[ -d $path ]] || continue
		path=${path%/}
		printf '%s\n' "${path##*/}"
	done
}

_thaw_fill() {
	mapfile -t COMPREPLY < <(compgen -W "$1" -- "${COMP_WORDS[COMP_CWORD]}")
}

_thaw_run() {
	case ${COMP_WORDS[COMP_CWORD - 1]} in
	--json | --console)
		mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
		return
		;;
	--strategy)
		_thaw_fill "ws mmap copy uring memfd uffd pack"
		return
		;;
	-e | --env)
		mapfile -t COMPREPLY < <(compgen -e -- "${COMP_WORDS[COMP_CWORD]}")
		return
		;;
	--populate)
		_thaw_fill "off read write both"
		return
		;;
	--prefault)
		_thaw_fill "on off"
		return
		;;
	--huge)
		_thaw_fill "none thp"
		return
		;;
	-w | --workdir | -u | --user | --timeout | --hostname | --threads | --fault-window)
		return
		;;
	esac
	if [[ ${COMP_WORDS[COMP_CWORD]} == -* ]]; then
		_thaw_fill "--detach --env --workdir --user --interactive --strategy --populate --prefault --huge --threads --fault-window --json --timeout --hostname --console --jail --no-pool --help --"
	else
		_thaw_fill "$(_thaw_templates)"
	fi
}

_thaw_template() {
	local verb=${COMP_WORDS[2]}
	if ((COMP_CWORD == 2)); then
		_thaw_fill "build record ls inspect verify flatten rm export import pack help"
		return
	fi
	case $verb:${COMP_WORDS[COMP_CWORD - 1]} in
	build:--recipe | record:--recipe)
		mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
		return
		;;
	build:--from)
		_thaw_fill "$(_thaw_templates)"
		return
		;;
	build:--strategy)
		_thaw_fill "ws mmap copy uring memfd uffd pack"
		return
		;;
	build:--recorder | record:--recorder)
		_thaw_fill "pagemap bpf"
		return
		;;
	build:--hot-rule | record:--hot-rule)
		_thaw_fill "half union intersection"
		return
		;;
	build:--vcpus)
		_thaw_fill "1 2 3 4 5 6 7 8"
		return
		;;
	esac
	case $verb:${COMP_WORDS[COMP_CWORD]} in
	build:-*) _thaw_fill "--recipe --vcpus --memory --from --whole --strategy --warm --recorder --hot-runs --hot-rule --replace --serial --timeout --help" ;;
	record:-*) _thaw_fill "--recorder --hot-runs --hot-rule --recipe --warm --timeout --help" ;;
	ls:* | inspect:-*) _thaw_fill "--json --help" ;;
	verify:-* | flatten:-* | rm:-*) _thaw_fill "--help" ;;
	export:-*) _thaw_fill "--no-root --replace --threads --help" ;;
	pack:-*) _thaw_fill "--threads --help" ;;
	import:-*) _thaw_fill "--replace --threads --help" ;;
	import:*) mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}") ;;
	export:*)
		if ((COMP_CWORD == 3)); then
			_thaw_fill "$(_thaw_templates)"
		else
			mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
		fi
		;;
	*) _thaw_fill "$(_thaw_templates)" ;;
	esac
}

_thaw_pool() {
	case ${COMP_WORDS[COMP_CWORD - 1]} in
	--size | --idle-timeout)
		return
		;;
	esac
	if [[ ${COMP_WORDS[COMP_CWORD]} == -* ]]; then
		_thaw_fill "--size --populate --idle-timeout --jail --status --json --help"
	else
		_thaw_fill "$(_thaw_templates)"
	fi
}

# @1: options of a verb whose arguments are ids.
_thaw_of_sandbox() {
	case ${COMP_WORDS[COMP_CWORD - 1]} in
	--strategy)
		_thaw_fill "ws mmap copy uring memfd uffd pack"
		return
		;;
	-o | --output)
		_thaw_fill "json"
		return
		;;
	-e | --env)
		mapfile -t COMPREPLY < <(compgen -e -- "${COMP_WORDS[COMP_CWORD]}")
		return
		;;
	-n | --count | -t | --time | -w | --workdir | -u | --user | --timeout)
		return
		;;
	esac
	if [[ ${COMP_WORDS[COMP_CWORD]} == -* ]]; then
		_thaw_fill "$1 --help"
	else
		_thaw_fill "$(_thaw_sandboxes)"
	fi
}

_thaw() {
	local i
	COMPREPLY=()
	# What stands behind "--" is the sandbox's: nothing here knows its files.
	for ((i = 1; i < COMP_CWORD; i++)); do
		[[ ${COMP_WORDS[i]} == -- ]] && return
	done
	if ((COMP_CWORD == 1)); then
		_thaw_fill "run exec ps fork pause resume stop rm template pool doctor version help"
		return
	fi
	case ${COMP_WORDS[1]} in
	run) _thaw_run ;;
	template) _thaw_template ;;
	pool) _thaw_pool ;;
	exec) _thaw_of_sandbox "--detach --env --workdir --user --interactive --timeout --" ;;
	fork) _thaw_of_sandbox "--count --strategy --output" ;;
	pause) _thaw_of_sandbox "--output" ;;
	resume) _thaw_of_sandbox "--strategy --output" ;;
	stop) _thaw_of_sandbox "--time" ;;
	rm) _thaw_of_sandbox "--force" ;;
	ps) _thaw_fill "--output json --help" ;;
	doctor) _thaw_fill "--json --help" ;;
	esac
}

complete -F _thaw thaw

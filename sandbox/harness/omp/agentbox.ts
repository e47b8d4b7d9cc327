// agentbox's gate for omp (oh-my-pi), as an extension: `omp -e agentbox.ts`, or in ~/.omp/agent/extensions/.
//
// Before each tool call, also those of subagents, it runs the gate (gate.sh): a call waits while PAUSE holds; under
// STOP it is refused and the turn is aborted; a change of the plan (redirect) is handed over in place of the call
// that met it, once. After each call it ticks: name, and the tokens used since the last tick. Under STOP no turn
// gets as far as the model, whatever woke the agent up. Outside of a box it does nothing.
//
// Format: the extension API of omp 18.2.3, docs/extensions.md and packages/coding-agent/src/extensibility/extensions/
// {types,runner}.ts of github.com/can1357/oh-my-pi. From there: a session's child sessions bind the same factory
// anew; a `tool_call` handler that takes longer than extensionHandlers.toolCallTimeoutMs (30 s) counts as a refusal.
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { existsSync, lstatSync, readFileSync } from "node:fs";
import { dirname } from "node:path";
import type { ExtensionAPI, ExtensionContext } from "@oh-my-pi/pi-coding-agent";

const GATE = new URL("../gate.sh", import.meta.url).pathname;
const LONGEST = 2 ** 31 - 1; // ms, the most that a timer takes: 24 days
const CHANGED = "The plan of this task was changed, and this call, made before, was not carried out. Go on with:";

interface Answer {
	code: number | null;
	out: string;
	err: string;
}

// An extension that is installed and given on the command line as well is there twice: one of the two asks.
const shared = globalThis as { agentboxCalls?: Map<string, Promise<Answer>> };
shared.agentboxCalls ??= new Map();
const calls = shared.agentboxCalls;

/** Whether STOP stands, without a mark and without waiting. What can't be trusted is STOP, as for the gate. */
function stopped(control: string): boolean {
	const home = dirname(dirname(dirname(dirname(control))));
	if (existsSync(`${home}/EMERGENCY_STOP`)) return true;
	const task = process.env.AGENTBOX_TASK_ID;
	return [control, ...(task ? [`${dirname(control)}/tasks/${task}`] : [])].some(path => {
		try {
			return !lstatSync(path).isFile() || !/^(RUN|PAUSE) \d/.test(readFileSync(path, "latin1"));
		} catch {
			return true;
		}
	});
}

export default function agentbox(pi: ExtensionAPI) {
	const control = process.env.AGENTBOX_CONTROL;
	if (!control) return;
	const held = new Set<ChildProcess>();
	const open = new Map<string, string>(); // calls under way: toolCallId -> name
	let tokens = 0;

	pi.setLabel("agentbox");

	function ask(name: string): Promise<Answer> {
		return new Promise(resolve => {
			const child = spawn("/bin/sh", [GATE, "gate", name], { stdio: ["ignore", "pipe", "pipe"] });
			const answer: Answer = { code: null, out: "", err: "" };
			held.add(child);
			child.stdout.on("data", data => (answer.out += data));
			child.stderr.on("data", data => (answer.err += data));
			child.on("error", error => resolve({ ...answer, err: `agentbox: the gate can't be asked: ${error.message}` }));
			child.on("close", code => {
				held.delete(child);
				resolve({ ...answer, code });
			});
		});
	}

	function tick(id: string) {
		const name = open.get(id);
		if (name === undefined) return;
		open.delete(id);
		calls.delete(id);
		spawnSync("/bin/sh", [GATE, "tick", name, String(tokens)], { stdio: "ignore" });
		tokens = 0;
	}

	/** A turn that is over, or was aborted, has no call under way and none that waits. */
	function settle() {
		for (const child of held) child.kill();
		for (const id of [...open.keys()]) tick(id);
	}

	/** Let a call wait for as long as a pause lasts: omp gives a handler 30 s, and refuses the call then. */
	async function waitLong() {
		const name = "extensionHandlers.toolCallTimeoutMs";
		const settings = pi.pi.settings as unknown as { override?(name: string, value: number): void };
		try {
			if (settings.override) return settings.override(name, LONGEST);
			// From 18.3 on a setting is changed by its handle.
			const registry = await import(String("@oh-my-pi/pi-coding-agent/config/registry"));
			registry.lookup(name).override(settings, LONGEST);
		} catch (error) {
			pi.logger.warn("agentbox: a pause of more than 30 s refuses calls", { error: String(error) });
		}
	}

	function leave(_event: unknown, ctx: ExtensionContext) {
		if (stopped(control as string)) ctx.abort();
	}

	pi.on("session_start", waitLong);
	pi.on("agent_start", leave);
	pi.on("turn_start", leave);
	pi.on("before_provider_request", leave);

	pi.on("tool_call", async (event, ctx) => {
		const tool = event.toolName.replace(/[^A-Za-z0-9._-]/g, "_").slice(0, 40);
		const name = `${tool}:${event.toolCallId.replace(/[^A-Za-z0-9]/g, "").slice(-8)}`;
		const first = !calls.has(event.toolCallId);
		if (first) calls.set(event.toolCallId, ask(name));
		const answer = await (calls.get(event.toolCallId) as Promise<Answer>);
		if (answer.code === 0) {
			if (first) open.set(event.toolCallId, name);
			if (!answer.out) return undefined;
			tick(event.toolCallId);
			return { block: true, reason: `${CHANGED}\n${answer.out.trim()}` };
		}
		calls.delete(event.toolCallId);
		if (answer.code === 2 || stopped(control)) ctx.abort();
		return { block: true, reason: answer.err.trim() || "agentbox: the call was interrupted while it waited" };
	});
	pi.on("tool_result", event => tick(event.toolCallId));
	pi.on("tool_execution_end", event => tick(event.toolCallId));
	pi.on("message_end", event => {
		const message = event.message as { role: string; usage?: { totalTokens?: number } };
		if (message.role === "assistant") tokens += message.usage?.totalTokens ?? 0;
	});
	pi.on("agent_end", settle);
	pi.on("session_shutdown", settle);
}

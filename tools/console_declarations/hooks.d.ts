export function useState<T>(initial: T | (() => T)): [T, (value: any) => void];
export function useRef<T>(initial: T): { current: any };
export function useEffect(effect: () => void | (() => void), inputs?: unknown[]): void;
